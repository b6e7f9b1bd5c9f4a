//! The lane of short look-ups and notes. Look-ups of sessions go together: the database answers
//! them in one flight.

use tokio::sync::oneshot;

use tidewater_centre::CentreError;
use tidewater_centre::records::{SessionRequest, SessionState};

use crate::connector::Connection;
use crate::database_task::DatabaseTask;
use crate::fair_queue::OfUser;
use crate::worker_pool::LaneWorker;

/// So many tasks are taken at once at most.
const BATCH_SESSIONS: usize = 64;

/// Something that is done in the lane of sessions.
pub enum SessionTask {
    /// Everything that opening a session needs is looked up.
    LookUp {
        /// What is asked.
        session: SessionRequest,
        /// Where the answer goes.
        reply: oneshot::Sender<Result<SessionState, CentreError>>,
    },
    /// Anything else, which goes alone.
    Alone(DatabaseTask),
}

impl OfUser for SessionTask {}

impl From<DatabaseTask> for SessionTask {
    fn from(task: DatabaseTask) -> SessionTask {
        SessionTask::Alone(task)
    }
}

/// Works through the lane until it is closed and empty.
pub(crate) async fn run_sessions(lane: LaneWorker<SessionTask>) {
    loop {
        let mut sessions = 0;
        let tasks = lane.queue.next(|_| {
            sessions += 1;
            sessions <= BATCH_SESSIONS
        });
        let Some(tasks) = tasks.await else {
            return;
        };
        let mut connection = lane.connections.take();
        let (mut asked, mut replies) = (Vec::new(), Vec::new());
        for task in tasks {
            match task {
                SessionTask::LookUp { reply, .. } if reply.is_closed() => {}
                SessionTask::LookUp { session, reply } => {
                    asked.push(session);
                    replies.push(reply);
                }
                SessionTask::Alone(task) => task.run(&mut connection).await,
            }
        }
        look_up(asked, replies, &mut connection).await;
    }
}

/// Looks up what sessions need, all at once; each alone if one of them is not well.
async fn look_up(
    asked: Vec<SessionRequest>,
    replies: Vec<oneshot::Sender<Result<SessionState, CentreError>>>,
    connection: &mut Connection,
) {
    if asked.len() > 1
        && let Ok(states) = connection.session_states(&asked).await
    {
        for (reply, state) in replies.into_iter().zip(states) {
            let _ = reply.send(Ok(state));
        }
        return;
    }
    for (session, reply) in asked.chunks(1).zip(replies) {
        let states = connection.session_states(session).await;
        let _ = reply.send(states.map(|mut states| states.remove(0)));
    }
}
