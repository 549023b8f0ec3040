//! What cannot be replicated does not compile.

#[test]
fn flow_state_is_plain_data() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/accepted/*.rs");
    cases.compile_fail("tests/refused/*.rs");
}
