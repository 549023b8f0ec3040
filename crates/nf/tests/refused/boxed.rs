// the trait `Copy` cannot be implemented for this type
holdfast_nf::flow_state! {
    pub struct Refused {
        pub count: Box<u64>,
    }
}

fn main() {}
