//! Questions about indexes that have been silent for long, and what follows from the
//! answers.

use super::{List, NOBODY, Output, Slot, State};
use crate::control::Opcode;
use holdfast_wire::fault::{Fault, is_planted};

/// Questions that may be open at a time: a million flows may have ended with one
/// instance.
pub(crate) const QUESTIONS: usize = 256;

/// A question about an index, and the instances that have not answered yet.
#[derive(Debug, Clone)]
pub(super) struct Question {
    pub(super) asked: Vec<Slot>,
    /// No message about the index has arrived since.
    pub(super) is_quiet: bool,
}

impl List {
    pub(super) fn due(&mut self, index: u32, out: &mut Vec<Output>) {
        match self.entries[index as usize].state {
            // Recovery of the dead may bring a copy of a flow that had this index.
            State::Resting if self.dead > 0 => self.wake(index, self.limits.timeout),
            State::Resting => self.turn(index, State::Free, NOBODY),
            State::Held | State::Lost if is_planted(Fault::ExpiresUnasked) => {
                self.others.remove(&index);
                self.rest(index);
            }
            State::Held | State::Lost => self.ask(index, out),
            State::Free | State::Credit => {}
        }
    }

    /// Asks all instances that may know of a flow with this index.
    fn ask(&mut self, index: u32, out: &mut Vec<Output>) {
        if self.questions.len() >= QUESTIONS
            && self.dead == 0
            && self.unasked.len() < self.entries.len()
        {
            return self.unasked.push_back(index);
        }
        self.wake(index, self.limits.timeout);
        // Questions about an index go one at a time, because an answer would not say to
        // which it belongs. During a recovery there are no questions: indexes of the dead
        // may be claimed any moment.
        if self.questions.contains_key(&index) || self.questions.len() >= QUESTIONS || self.dead > 0
        {
            return;
        }
        let is_lost = self.entries[index as usize].state == State::Lost;
        let asked: Vec<Slot> =
            self.living().filter(|slot| is_lost || self.is_holder(*slot, index)).collect();
        for slot in &asked {
            self.say(*slot, Opcode::Expire, index, out);
        }
        self.questions.insert(index, Question { asked, is_quiet: true });
        self.conclude(index);
    }

    /// Asks the questions that have waited for an earlier one to be answered.
    pub(super) fn ask_more(&mut self, out: &mut Vec<Output>) {
        while self.dead == 0
            && self.questions.len() < QUESTIONS
            && let Some(index) = self.unasked.pop_front()
        {
            if matches!(self.entries[index as usize].state, State::Held | State::Lost) {
                self.ask(index, out);
            }
        }
    }

    /// An asked instance has said all that it had to say about the index.
    pub(super) fn answered(&mut self, slot: Slot, index: u32) {
        if let Some(question) = self.questions.get_mut(&index) {
            question.asked.retain(|asked| *asked != slot);
            self.conclude(index);
        }
    }

    fn conclude(&mut self, index: u32) {
        if self.questions.get(&index).is_none_or(|question| !question.asked.is_empty()) {
            return;
        }
        let is_quiet = self.questions.remove(&index).is_some_and(|question| question.is_quiet);
        if is_quiet || is_planted(Fault::HeedsLateAnswers) {
            self.others.remove(&index);
            self.rest(index);
        }
    }
}
