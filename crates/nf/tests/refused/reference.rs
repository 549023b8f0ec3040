// the trait bound `&'static str: FromBytes` is not satisfied
holdfast_nf::flow_state! {
    pub struct Refused {
        pub name: &'static str,
    }
}

fn main() {}
