holdfast_nf::flow_state! {
    pub struct Refused {
        pub name: &'static str,
    }
}

fn main() {}
