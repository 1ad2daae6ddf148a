//! What to do about an error: a pure decision.

use std::time::Duration;

use xtfs_protocol::{Code, Error, Retry};

/// Shortest and longest pause between two attempts.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The next step after an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The same request again after a pause.
    Again(Duration),
    /// Open the session anew, then the same request again.
    NewSession,
    /// The caller has to deal with it.
    Fail,
}

/// Decides after the `attempt`-th failure (counted from 0) of one request.
pub(crate) fn decide(error: &Error, attempt: u32) -> Step {
    let pause = PAUSE_MAX.min(PAUSE_MIN * 2u32.saturating_pow(attempt.min(10)));
    match (error.code, error.retry) {
        (Code::SessionExpired, _) => Step::NewSession,
        // Waiting does not make room; the application has to know at once.
        (Code::NoSpace | Code::QuotaExceeded, _) => Step::Fail,
        (_, Retry::After(ms)) => Step::Again(
            Duration::from_millis(u64::from(ms)).clamp(Duration::from_millis(1), PAUSE_MAX),
        ),
        (Code::Unreachable | Code::TimedOut | Code::ShuttingDown | Code::Busy, _) => {
            Step::Again(pause)
        }
        _ => Step::Fail,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreachable_server_is_asked_again_ever_more_slowly() {
        let error = Error::from(Code::Unreachable);
        assert_eq!(decide(&error, 0), Step::Again(PAUSE_MIN));
        assert_eq!(decide(&error, 60), Step::Again(PAUSE_MAX));
    }

    #[test]
    fn answers_that_stay_the_same_are_not_asked_for_again() {
        assert_eq!(decide(&Code::NotFound.into(), 0), Step::Fail);
        let full = Error::retryable(Code::NoSpace, "osd", 5);
        assert_eq!(decide(&full, 0), Step::Fail);
        assert_eq!(decide(&Code::BadCapability.into(), 0), Step::Fail);
    }

    #[test]
    fn an_expired_session_is_opened_anew() {
        let error = Error::reopen(Code::SessionExpired, "");
        assert_eq!(decide(&error, 0), Step::NewSession);
    }
}
