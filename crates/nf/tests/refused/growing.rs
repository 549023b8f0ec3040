// the trait bound `Vec<u8>: FromBytes` is not satisfied
holdfast_nf::flow_state! {
    pub struct Refused {
        pub seen: Vec<u8>,
    }
}

fn main() {}
