use holdfast_sim::{Planted, Preset, Scenario, run};
#[test]
fn tmp() {
    let from: u64 = std::env::var("FROM").map(|v| v.parse().unwrap()).unwrap_or(1_000_000);
    let n: u64 = std::env::var("N").map(|v| v.parse().unwrap()).unwrap_or(100);
    let mut bad = 0;
    for seed in from..from + n {
        let report = run(Scenario::of_seed(seed));
        if !report.violations.is_empty() {
            bad += 1;
            if bad <= 12 { println!("seed {seed}: {} violations: {} | {}", report.violations.len(), report.violations[0].invariant, report.violations[0].text); }
        }
    }
    println!("bad {bad} of {n}");
}
#[test]
fn quiet() {
    for seed in 0..30 {
        let report = run(Scenario { seed, preset: Preset::Reinforce, planted: Planted::default(), quiet: true, tight: false });
        assert!(report.violations.is_empty() && report.finished == report.connections, "{seed}: {} of {}: {:?}", report.finished, report.connections, report.violations);
    }
}
