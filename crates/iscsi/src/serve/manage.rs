//! Task management: aborts tasks, resets units and targets. The answer is sent when the tasks have ended.

use super::running::Running;
use crate::scsi::inquiry::decode_lun;
use crate::scsi::sense::code;
use crate::session::{Management, management_response};
use std::sync::Arc;
use weir_machine::{Operation, Request};

/// Functions.
mod function {
    pub const ABORT_TASK: u8 = 1;
    pub const ABORT_TASK_SET: u8 = 2;
    pub const CLEAR_TASK_SET: u8 = 4;
    pub const LUN_RESET: u8 = 5;
    pub const TARGET_WARM_RESET: u8 = 6;
    pub const TARGET_COLD_RESET: u8 = 7;
    pub const TASK_REASSIGN: u8 = 8;
}

/// Responses.
mod answer {
    pub const COMPLETE: u8 = 0;
    pub const NO_TASK: u8 = 1;
    pub const NO_LUN: u8 = 2;
    pub const NO_REASSIGNMENT: u8 = 4;
    pub const NOT_SUPPORTED: u8 = 5;
}

/// Starts a function.
pub fn start(session: &Arc<Running>, request: Management) {
    let guard = session.handle.begin_call();
    let running = session.clone();
    drop(session.tasks.spawn(async move {
        let response = manage(&running, &request).await;
        running.send_one(management_response(&request, response), guard);
        if request.bhs.flags() & 0x7f == function::TARGET_COLD_RESET && response == answer::COMPLETE {
            end_sessions(&running);
        }
    }));
}

async fn manage(session: &Arc<Running>, request: &Management) -> u8 {
    let lun = decode_lun(request.bhs.lun());
    match request.bhs.flags() & 0x7f {
        function::ABORT_TASK => {
            let itt = request.bhs.ttt();
            if !session.state().has(itt) {
                return answer::NO_TASK;
            }
            let aborted = session.abort(|other, _| other == itt);
            session.wait_ended(&aborted).await;
            answer::COMPLETE
        }
        function::ABORT_TASK_SET => {
            let aborted = session.abort(|_, other| other == lun);
            session.wait_ended(&aborted).await;
            answer::COMPLETE
        }
        function @ (function::CLEAR_TASK_SET | function::LUN_RESET) => {
            let rq = Request::new(&session.account().client, Operation::Open);
            let opened = match lun {
                Some(lun) => session.unit(lun, &rq).await,
                None => Ok(None),
            };
            let Ok(Some(open)) = opened else { return answer::NO_LUN };
            clear(session, open.unit.id).await;
            if function == function::LUN_RESET {
                open.unit.reset();
            } else {
                open.unit.raise(code::COMMANDS_CLEARED, |other, _| other != session.number);
            }
            answer::COMPLETE
        }
        function::TARGET_WARM_RESET | function::TARGET_COLD_RESET => {
            for open in session.open_units() {
                clear(session, open.unit.id).await;
                open.unit.reset();
            }
            answer::COMPLETE
        }
        function::TASK_REASSIGN => answer::NO_REASSIGNMENT,
        _ => answer::NOT_SUPPORTED,
    }
}

/// Aborts all tasks at a unit, of all sessions.
async fn clear(session: &Arc<Running>, unit: u64) {
    for session in session.server.all_sessions() {
        let luns = session.luns_of(unit);
        let aborted = session.abort(|_, lun| lun.is_some_and(|lun| luns.contains(&lun)));
        session.wait_ended(&aborted).await;
    }
}

/// Ends all sessions with the target.
fn end_sessions(session: &Arc<Running>) {
    let target = session.nexus.as_ref().map(|nexus| &nexus.target);
    for other in session.server.all_sessions() {
        if other.nexus.as_ref().map(|nexus| &nexus.target) == target {
            other.end("its target was reset");
        }
    }
}
