// the trait bound `bool: FromBytes` is not satisfied
holdfast_nf::flow_state! {
    pub struct Refused {
        pub open: bool,
    }
}

fn main() {}
