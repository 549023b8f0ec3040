// `Refused` has 7 total byte(s) of padding
holdfast_nf::flow_state! {
    pub struct Refused {
        pub flag: u8,
        pub count: u64,
    }
}

fn main() {}
