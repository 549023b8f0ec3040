// the trait bound `Box<u64>: FromBytes` is not satisfied
holdfast_nf::flow_state! {
    pub struct Refused {
        pub count: Box<u64>,
    }
}

fn main() {}
