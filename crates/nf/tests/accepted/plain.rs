holdfast_nf::flow_state! {
    pub struct Plain {
        pub count: u64,
        pub address: [u8; 16],
        pub port: u16,
        pub flags: [u8; 6],
    }
}

fn main() {
    fn is_flow_state<F: holdfast_nf::FlowState>() {}
    is_flow_state::<Plain>();
}
