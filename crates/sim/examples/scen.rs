fn main() {
    let text = std::fs::read_to_string(std::env::args().nth(1).unwrap()).unwrap();
    for script in holdfast_sim::Script::read(&text).unwrap() {
        let (outcome, wrong) = script.play(std::env::args().nth(2).is_some());
        println!("{} events {} wrong {wrong:?}", script.name, outcome.report.events);
    }
}
