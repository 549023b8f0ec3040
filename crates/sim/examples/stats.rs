use holdfast_sim::*;
fn main() {
    let n: u64 = std::env::args().nth(1).unwrap().parse().unwrap();
    let from: u64 = std::env::args().nth(2).unwrap_or("0".into()).parse().unwrap();
    let t = std::time::Instant::now();
    let mut f = Faults::default();
    let mut ev = 0;
    let mut conn = 0;
    let mut fin = 0;
    let mut bad = 0;
    for s in from..from + n {
        let r = run(Scenario::of_seed(s));
        f.add(&r.faults);
        ev += r.events;
        conn += r.connections;
        fin += r.finished;
        if !r.violations.is_empty() {
            bad += 1;
            if bad < 6 {
                println!("{s}: {:?}", r.violations);
            }
        }
    }
    println!("{n} seeds {ev} events {:?} conns {conn} finished {fin} bad {bad} in {:?}", f, t.elapsed());
    for p in [
        Planted { release_before_commit: true, ..Default::default() },
        Planted { no_epoch_check: true, ..Default::default() },
        Planted { reuse_live_port: true, ..Default::default() },
    ] {
        let hits: Vec<u64> =
            (0..300).filter(|&s| !run(Scenario { planted: p, ..Scenario::of_seed(s) }).violations.is_empty()).collect();
        println!("{p:?}: {} hits, first {:?}", hits.len(), hits.first());
    }
}
