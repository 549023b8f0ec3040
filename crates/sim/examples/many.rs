use holdfast_sim::{Scenario, run, shrink};
fn main() {
    let args: Vec<u64> = std::env::args().skip(1).map(|a| a.parse().unwrap()).collect();
    let mut hs = Vec::new();
    for w in 0..2 {
        let (a, b) = (args[0], args[1]);
        hs.push(std::thread::spawn(move || {
            for seed in (a + w..b).step_by(2) {
                let r = run(Scenario::of_seed(seed));
                if !r.violations.is_empty() {
                    println!(
                        "seed {seed}: {} x {}: {}",
                        r.violations.len(),
                        r.violations[0].invariant,
                        r.violations[0].text.chars().take(160).collect::<String>()
                    );
                }
            }
        }));
    }
    hs.into_iter().for_each(|h| h.join().unwrap());
    for seed in args.iter().skip(2) {
        match shrink(Scenario::of_seed(*seed)) {
            Some(s) => println!("--- {seed}\n{s}"),
            None => println!("--- {seed}: not again"),
        }
    }
}
