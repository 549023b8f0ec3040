// the trait `Copy` cannot be implemented for this type
use holdfast_nf::Leased;

pub enum Ports {}

holdfast_nf::flow_state! {
    #[derive(Clone, Copy)]
    pub struct Refused {
        pub port: Leased<Ports>,
    }
}

fn main() {}
