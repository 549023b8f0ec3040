//! The command `holdfast`.
#![forbid(unsafe_code)]

#[global_allocator]
static ALLOCATOR: holdfast_io::CountingAllocator = holdfast_io::CountingAllocator;

fn main() -> std::process::ExitCode {
    holdfast::cli::main()
}
