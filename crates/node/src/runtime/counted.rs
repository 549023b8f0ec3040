//! Counts and measurements of this runtime's flows, told to the managers if no state
//! server adds them up.
//!
//! In: the chains' statistics, the time. Out: [`Control::Totals`] of the statistics that
//! no server adds up, in the order of chain, function and field.

use super::Lane;
use crate::message::Control;
use crate::totals::StatisticsReport;

/// The place of a statistic.
struct Listed {
    lane: usize,
    function: u8,
    field: u8,
}

/// See the module.
pub(super) struct Counted {
    statistics: Vec<Listed>,
    report: StatisticsReport,
}

impl Counted {
    pub(super) fn of(lanes: &mut [Lane]) -> Counted {
        let (mut statistics, mut sizes) = (Vec::new(), Vec::new());
        for (at, lane) in lanes.iter_mut().enumerate() {
            lane.visit_parts(|function, field, part| {
                if !part.is_shared() {
                    statistics.push(Listed { lane: at, function, field });
                    sizes.push(part.own().len());
                }
            });
        }
        Counted { statistics, report: StatisticsReport::new(sizes) }
    }

    pub(super) fn tell(
        &mut self,
        lanes: &mut [Lane],
        now: u64,
        send: impl FnMut(&Control) -> bool,
    ) {
        let look = |statistic: usize, look: &mut dyn FnMut(&[i64])| {
            let Listed { lane, function, field } = self.statistics[statistic];
            lanes[lane].with_part(function, field, &mut |part| look(part.own()));
        };
        self.report.tell(now, look, send);
    }
}
