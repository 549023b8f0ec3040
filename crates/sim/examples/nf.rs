use holdfast_sim::*;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let (from, to): (u64, u64) = (a[1].parse().unwrap(), a[2].parse().unwrap());
    let planted = match a.get(3).map(String::as_str) {
        Some("interval") => Planted { ignore_interval: true, ..Planted::default() },
        Some("early") => Planted { report_early: true, ..Planted::default() },
        Some("epoch") => Planted { no_epoch_check: true, ..Planted::default() },
        _ => Planted::default(),
    };
    if a.get(3).map(String::as_str) == Some("trace") {
        let r = run_traced(Scenario { seed: from, preset: Preset::NfActor, planted, quiet: false, tight: from / 3 % 2 == 1 });
        println!("{:?}", r);
        return;
    }
    let (mut kills, mut pauses, mut bad) = (0, 0, 0);
    for seed in from..to {
        let r = run(Scenario { seed, preset: Preset::NfActor, planted, quiet: false, tight: seed / 3 % 2 == 1 });
        kills += r.faults.kills;
        pauses += r.faults.pauses;
        if !r.violations.is_empty() {
            bad += 1;
            if bad < 12 {
                println!("{seed}: {}/{} {:?}", r.finished, r.connections, &r.violations[..r.violations.len().min(2)]);
            }
        }
    }
    println!("kills {kills} pauses {pauses} bad {bad}");
}
