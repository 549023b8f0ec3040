//! Tests of the scenarios: each fault that can be planted in a function is noticed by
//! some scenarios, each by itself.
//!
//! Most of the faults were once real. A scenario here is one of the tests beside it: it
//! must hold, and must fail once the fault is planted.

use crate::bench::holds;
use crate::{
    firewall, firewall_tcp, http, http_evasion, http_rules, ips, ips_evasion, load_balancer, nat,
    nat_pool, nat_publish,
};
use holdfast_wire::fault::{Fault, plant};

/// A scenario with its name.
type Scenario = (&'static str, fn());

macro_rules! scenarios {
    ($($module:ident::$name:ident),+) => {
        &[$((concat!(stringify!($module), "::", stringify!($name)), $module::$name as fn())),+]
    };
}

/// A fault, and the scenarios that notice it.
type Row = (Fault, &'static [Scenario]);

#[rustfmt::skip]
const TABLE: &[Row] = &[
    (Fault::AnySegmentOpens, scenarios![nat_pool::only_a_syn_opens_a_mapping, load_balancer::only_a_syn_opens_a_connection]),
    (Fault::RefusesCrossingSyns, scenarios![firewall_tcp::a_simultaneous_open_is_an_open]),
    (Fault::AnswersEstablish, scenarios![firewall_tcp::a_handshake_is_complete_when_both_have_answered, nat_pool::an_answer_alone_establishes_nothing]),
    (Fault::RefusesSecondSyns, scenarios![firewall_tcp::another_syn_on_an_unanswered_flow_is_tracked, firewall_tcp::a_crashed_client_connects_again]),
    (Fault::BelievesAnySyn, scenarios![firewall_tcp::a_spoofed_syn_changes_nothing]),
    (Fault::RefusesChallenges, scenarios![firewall_tcp::a_challenge_answers_a_syn]),
    (Fault::RefusesSecondAnswers, scenarios![firewall_tcp::a_second_answer_with_another_number]),
    (Fault::InexactResetsEnd, scenarios![firewall_tcp::a_reset_that_is_not_exact_ends_nothing, nat_pool::a_reset_with_a_wrong_number_shortens_nothing]),
    (Fault::RefusesReuse, scenarios![firewall_tcp::a_port_in_time_wait_is_used_again_by_a_newer_syn, firewall_tcp::a_port_in_time_wait_is_used_again_by_a_lower_syn]),
    (Fault::ResetsFitAnywhere, scenarios![firewall_tcp::resets_must_lie_in_the_window]),
    (Fault::ResetsAreFinal, scenarios![firewall_tcp::data_after_a_reset_prove_that_the_connection_lives]),
    (Fault::IgnoresWindows, scenarios![firewall_tcp::segments_must_fit_both_windows, firewall_tcp::windows_are_scaled_if_both_sides_scale]),
    (Fault::ClosesLate, scenarios![nat_pool::a_closed_connection_has_minutes_left, firewall_tcp::a_connection_from_its_first_segment_to_its_last]),
    (Fault::ResetsKeepMappings, scenarios![nat_pool::resets_that_change_nothing_keep_no_mapping]),
    (Fault::InsideKeepsNothing, scenarios![nat::either_side_keeps_a_mapping]),
    (Fault::AllowsShortTimeouts, scenarios![nat_pool::time_outs_are_options_with_bounds, firewall::absurd_time_outs_are_refused]),
    (Fault::ForgetsUdpEarly, scenarios![nat::errors_neither_end_nor_keep_a_mapping]),
    (Fault::RequestsPassAsReplies, scenarios![firewall::no_other_message_passes_as_the_reply, nat::no_other_message_is_translated_as_the_reply]),
    (Fault::ErrorsGoAnywhere, scenarios![firewall::errors_go_to_who_sent_what_they_quote, nat::errors_that_are_not_the_flows_are_not_delivered]),
    (Fault::RedirectsPass, scenarios![nat::errors_that_are_not_the_flows_are_not_delivered]),
    (Fault::AllowsTinyMtus, scenarios![firewall::icmp_errors_ask_for_no_impossible_mtu, nat::errors_that_are_not_the_flows_are_not_delivered, load_balancer::errors_ask_for_no_impossible_mtu]),
    (Fault::ErrorsQuoteAnything, scenarios![firewall::icmp_errors_quote_what_is_on_its_way]),
    (Fault::TranslatesDamagedErrors, scenarios![nat::damaged_errors_are_dropped]),
    (Fault::LeavesQuotesAlone, scenarios![nat::errors_from_outside_are_translated_with_what_they_quote, nat::errors_from_inside_are_translated_with_what_they_quote, load_balancer::errors_towards_the_client_are_translated]),
    (Fault::ReadsNoQuotedOptions, scenarios![nat::options_and_extensions_in_errors_are_no_ports]),
    (Fault::BelievesPeersOnly, scenarios![nat::errors_from_outside_are_translated_with_what_they_quote]),
    (Fault::PassesQuotedRoutes, scenarios![nat::errors_about_source_routes_are_dropped]),
    (Fault::ShowsInsideRouters, scenarios![nat::errors_from_inside_are_translated_with_what_they_quote, nat_publish::errors_about_published_ends_are_translated]),
    (Fault::ErrorsKeepMappings, scenarios![nat::errors_neither_end_nor_keep_a_mapping]),
    (Fault::ErrorsEndMappings, scenarios![nat::errors_neither_end_nor_keep_a_mapping]),
    (Fault::OutsidersOpenMappings, scenarios![nat::without_inside_private_and_shared_sources_are_translated, nat::nothing_leaves_untranslated]),
    (Fault::LaterFragmentsOpen, scenarios![nat::a_later_fragment_opens_no_mapping]),
    (Fault::ReusesLivePort, scenarios![nat_pool::every_flow_has_a_port_to_itself]),
    (Fault::LeasesWhatIsPublished, scenarios![nat_publish::no_flow_leases_what_is_published]),
    (Fault::GivesBackUnleased, scenarios![nat_publish::the_end_of_a_published_flow_gives_nothing_back]),
    (Fault::HairpinsWithInsideSource, scenarios![nat_publish::inside_hosts_reach_what_is_published, nat_publish::pings_and_published_hosts_hairpin_too]),
    (Fault::DealsPortsInOrder, scenarios![nat_pool::ports_are_random_unless_sequential, nat_pool::random_ports_are_in_no_order]),
    (Fault::RestsNoPorts, scenarios![nat_pool::a_busy_small_pool_lets_ports_rest]),
    (Fault::EmptyPoolsLend, scenarios![nat_pool::an_empty_pool_refuses_new_flows_and_harms_none]),
    (Fault::UsesOneAddress, scenarios![nat_pool::a_pool_may_be_scattered]),
    (Fault::PairsNoAddresses, scenarios![nat_pool::a_host_keeps_its_outside_address]),
    (Fault::LosesUdpChecksums, scenarios![nat::a_udp_checksum_never_turns_into_none]),
    (Fault::InspectsSegmentsAlone, scenarios![ips::a_pattern_is_found_across_every_border, ips_evasion::a_segment_behind_a_gap_comes_again]),
    (Fault::PassesBehindGaps, scenarios![ips_evasion::a_segment_behind_a_gap_comes_again]),
    (Fault::TrustsRetransmissions, scenarios![ips_evasion::bytes_that_come_again_are_inspected_again, ips_evasion::bytes_that_come_again_as_others_are_noticed]),
    (Fault::TrustsOtherBytes, scenarios![ips_evasion::bytes_that_come_again_as_others_are_noticed, ips_evasion::half_of_a_rule_that_comes_again_is_noticed]),
    (Fault::BelievesAnyBeginning, scenarios![ips_evasion::a_syn_begins_anew_only_if_it_is_answered]),
    (Fault::KeepsStatesOfOtherRules, scenarios![ips::rules_change_while_flows_live]),
    (Fault::BalancesToTheClient, scenarios![load_balancer::a_backend_is_not_its_own_client]),
    (Fault::ReadsTwice, scenarios![http_evasion::repeated_bytes_are_read_once, http_evasion::segments_of_one_byte]),
    (Fault::PassesGaps, scenarios![http_evasion::a_gap_is_filled_first, http_evasion::a_requests_body_has_an_order]),
    (Fault::BelievesClientSyns, scenarios![http_evasion::a_syn_hides_nothing]),
    (Fault::AllowsTwoLengths, scenarios![http::ambiguous_requests_are_refused]),
    (Fault::NeedsNoHost, scenarios![http::a_request_needs_a_host]),
    (Fault::ComparesRawPaths, scenarios![http_rules::other_spellings_evade_no_rule]),
    (Fault::ForgetsRefusals, scenarios![http_rules::a_refused_connection_stays_refused]),
    (Fault::ExpectsHeadBodies, scenarios![http::responses_without_bodies]),
    (Fault::ReadsTunnels, scenarios![http::what_follows_an_upgrade_is_not_read]),
];

/// The scenarios that notice the fault of this name.
pub(crate) fn noticed_by(fault: &str) -> impl Iterator<Item = &'static str> {
    let rows = TABLE.iter().filter(move |(planted, _)| planted.name() == fault);
    rows.flat_map(|(_, scenarios)| scenarios.iter().map(|(name, _)| *name))
}

/// Every scenario in a fault's row holds without the fault, and fails with it;
/// `--nocapture` shows the failure's message.
#[test]
#[allow(clippy::print_stdout)]
#[cfg_attr(not(debug_assertions), ignore = "there is nothing to plant without debug assertions")]
fn planted_faults_are_noticed() {
    let mut wrong = Vec::new();
    for (fault, scenarios) in TABLE {
        for (name, scenario) in *scenarios {
            if let Err(said) = holds(*scenario) {
                wrong.push(format!("{name} does not hold, without any fault: {said}"));
            }
            let _planting = plant((*fault).into());
            match holds(*scenario) {
                Ok(()) => wrong.push(format!("{name} does not notice `{}`", fault.name())),
                Err(said) => println!(
                    "{}: {name}: {}",
                    fault.name(),
                    said.lines().next().unwrap_or_default()
                ),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Every fault of functions has a row.
#[test]
fn every_fault_has_a_row() {
    let rows = |fault: &Fault| TABLE.iter().filter(|(planted, _)| planted == fault).count();
    let wrong: Vec<&str> = Fault::OF_FUNCTIONS
        .iter()
        .filter(|fault| rows(fault) != 1)
        .map(|fault| fault.name())
        .collect();
    assert!(wrong.is_empty(), "not in one row: {wrong:?}");
}
