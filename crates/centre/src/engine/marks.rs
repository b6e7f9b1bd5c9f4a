//! Marks: one for all downloads that wait for one at the same moment.

use tokio::sync::{mpsc, oneshot};

use crate::error::CentreError;

type Result<T> = std::result::Result<T, CentreError>;

/// A download that waits for its mark; `R` is what it brings along.
struct MarkRequest<R, M> {
    asked: R,
    reply: oneshot::Sender<Result<M>>,
}

/// Asks for marks.
pub struct MarkQueue<R, M>(mpsc::UnboundedSender<MarkRequest<R, M>>);

/// Those who ask. Their snapshots are taken, and the transaction of the next mark has not begun.
pub struct PendingMarkRequests<R, M>(mpsc::UnboundedReceiver<MarkRequest<R, M>>);

/// Those who get one mark.
pub struct MarkBatch<M>(Vec<oneshot::Sender<Result<M>>>);

/// Both ends of a queue.
pub fn queue<R, M>() -> (MarkQueue<R, M>, PendingMarkRequests<R, M>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (MarkQueue(sender), PendingMarkRequests(receiver))
}

impl<R, M> Clone for MarkQueue<R, M> {
    fn clone(&self) -> MarkQueue<R, M> {
        MarkQueue(self.0.clone())
    }
}

impl<R, M> MarkQueue<R, M> {
    /// A mark that is committed after this call began.
    pub async fn ask(&self, asked: R) -> Result<M> {
        self.request(asked)?.await.unwrap_or_else(|_| Err(gone()))
    }

    /// The same on a thread that may block.
    pub fn ask_blocking(&self, asked: R) -> Result<M> {
        let answer = self.request(asked)?.blocking_recv();
        answer.unwrap_or_else(|_| Err(gone()))
    }

    fn request(&self, asked: R) -> Result<oneshot::Receiver<Result<M>>> {
        let (reply, answer) = oneshot::channel();
        let sent = self.0.send(MarkRequest { asked, reply });
        sent.map(|()| answer).map_err(|_| gone())
    }
}

impl<R, M> PendingMarkRequests<R, M> {
    /// All who wait now, once there is one, and what they ask; `None` if nobody ever will.
    pub async fn next(&mut self) -> Option<(Vec<R>, MarkBatch<M>)> {
        let first = self.0.recv().await?;
        Some(self.with_others(first))
    }

    /// The same on a thread that may block.
    pub fn next_blocking(&mut self) -> Option<(Vec<R>, MarkBatch<M>)> {
        let first = self.0.blocking_recv()?;
        Some(self.with_others(first))
    }

    fn with_others(&mut self, first: MarkRequest<R, M>) -> (Vec<R>, MarkBatch<M>) {
        let (mut asked, mut waiting) = (vec![first.asked], vec![first.reply]);
        while let Ok(request) = self.0.try_recv() {
            asked.push(request.asked);
            waiting.push(request.reply);
        }
        (asked, MarkBatch(waiting))
    }
}

impl<M> MarkBatch<M> {
    /// Answers each of them, in their order; whoever no longer waits was cancelled.
    pub fn answer(self, marks: Result<Vec<M>>) {
        let mut marks = marks.map(Vec::into_iter);
        for reply in self.0 {
            let mark = match &mut marks {
                Ok(marks) => marks.next().ok_or_else(|| CentreError::Internal {
                    message: "a download got no mark".into(),
                }),
                Err(error) => Err(same(error)),
            };
            let _ = reply.send(mark);
        }
    }
}

fn gone() -> CentreError {
    CentreError::Internal {
        message: "nobody makes marks any more".into(),
    }
}

/// The error once more.
fn same(error: &CentreError) -> CentreError {
    let message = error.to_string();
    match error {
        CentreError::Unavailable { .. } => CentreError::Unavailable { message },
        CentreError::Locked { .. } => CentreError::Locked { message },
        _ => CentreError::StatementFailed {
            what: "a mark".into(),
            message,
            sqlstate: None,
            retry: error.is_retryable(),
        },
    }
}
