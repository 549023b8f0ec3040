//! The command `flows`.

use super::asking::{age, or_dash};
use holdfast_control::exit::Failure;
use holdfast_control::flows::{Flow, FlowValue, Flows};
use holdfast_control::table::print;
use holdfast_control::table::{Style, Table};
use holdfast_control::{Client, Target};

pub(super) fn flows(
    target: &Target,
    selector: &str,
    limit: u32,
    json: bool,
) -> Result<(), Failure> {
    let client = Client::to(target)?;
    if !json {
        return print(&flows_text(&client.list(selector, limit)?, Style::of_stdout()));
    }
    // Flows are printed in batches because there may be a million. The output is one JSON
    // object.
    let mut before = "{\"flows\":[";
    let truncated = client.flows(selector, limit, |flows| {
        let mut text = String::new();
        for flow in &flows {
            text += core::mem::replace(&mut before, ",");
            text += &serde_json::to_string(flow).unwrap_or_default();
        }
        print(&text)
    })?;
    let before = if before == "," { "" } else { before };
    print(&format!(
        "{before}],\"truncated\":{truncated},\"version\":{}}}\n",
        holdfast_control::flows::VERSION
    ))
}

/// The values of a flow's state that are not 0, in a line.
fn values(flow: &Flow) -> String {
    let text = |value: &FlowValue| format!("{}.{}={}", value.function, value.name, value.value);
    let values: Vec<String> =
        flow.values.iter().filter(|value| value.value > 0).map(text).collect();
    values.join(" ")
}

fn flows_text(list: &Flows, style: Style) -> String {
    let number = |numbers: &[u64], at: usize| or_dash(numbers.get(at));
    let has_values = list.flows.iter().any(|flow| !flow.values.is_empty());
    let row = |flow: &Flow| {
        let mut row = vec![
            flow.protocol_name(),
            format!("{} > {}", flow.source, flow.destination),
            format!("{} > {}", flow.translated_source, flow.translated_destination),
            flow.state.clone(),
            flow.owner.to_string(),
            or_dash(flow.replica),
            age(flow.age_ms),
            number(&flow.packets, 0),
            number(&flow.packets, 1),
            number(&flow.bytes, 0),
            number(&flow.bytes, 1),
        ];
        if has_values {
            row.push(values(flow));
        }
        row
    };
    let mut head = vec![
        "proto",
        "flow",
        "after NAT",
        "state",
        "owner",
        "replica",
        "age",
        "packets",
        "packets back",
        "bytes",
        "bytes back",
    ];
    if has_values {
        head.push("values");
    }
    let mut text = Table::of(&head, list.flows.iter().map(row)).text(style);
    if list.truncated {
        text += "There may be more: --limit N shows more, a selector shows fewer.\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_a_line_with_both_tuples() {
        let list: Flows = serde_json::from_str(
            r#"{"version":1,"truncated":true,"flows":[{"protocol":6,"source":"10.0.0.2:4000","destination":"203.0.113.10:80","translated_source":"198.51.100.4:1024",
                "translated_destination":"198.51.100.11:80","chain":"web","state":"established","owner":16,"replica":17,"epoch":1,"age_ms":61500,
                "packets":[5,4],"bytes":[500,40000]}]}"#,
        )
        .unwrap();
        let text = flows_text(&list, Style::PLAIN);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        let words = "tcp    10.0.0.2:4000 > 203.0.113.10:80  198.51.100.4:1024 > 198.51.100.11:80  established     16       17  1 min 1 s        5             4    500       40000";
        assert_eq!(lines[1], words);
        assert!(lines[2].starts_with("There may be more"));
    }

    /// Values that functions show of flows have a column, if there are any.
    #[test]
    fn values_of_functions_are_a_column() {
        let list: Flows = serde_json::from_str(
            r#"{"version":1,"truncated":false,"flows":[{"protocol":17,"source":"10.0.0.2:4000","destination":"203.0.113.10:53",
                "values":[{"function":"monitor","name":"retransmitted","value":0},{"function":"monitor","name":"rtt_us","value":310},
                {"function":"monitor","name":"bytes_back","value":7}]},
                {"protocol":17,"source":"10.0.0.3:4000","destination":"203.0.113.10:53"}]}"#,
        )
        .unwrap();
        let text = flows_text(&list, Style::PLAIN);
        let ends: Vec<&str> = text.lines().map(|line| line.trim_end()).collect();
        assert!(ends[0].ends_with("bytes back  values"), "{text}");
        assert!(ends[1].ends_with(" monitor.rtt_us=310 monitor.bytes_back=7"), "{text}");
        assert!(!ends[2].contains("monitor"), "{text}");
    }
}
