//! Tasks of remotes that may have been shut out since they signed in.

use tidewater_centre::CentreError;
use tidewater_protocol::RemoteId;

use crate::connector::Connection;
use crate::session_validity::SessionValidity;

/// A task of a remote that may have been shut out since it signed in.
pub(crate) trait RemoteTask: Sized {
    fn remote_id(&self) -> Option<RemoteId>;
    fn validity(&self) -> SessionValidity;
    fn refuse(self, error: CentreError);
}

/// Answers the tasks of remotes that were shut out since they signed in; gives the others.
pub(crate) async fn refuse_shut_out<T: RemoteTask>(
    tasks: Vec<T>,
    connection: &mut Connection,
) -> Vec<T> {
    let doubtful = tasks.iter().filter(|task| !task.validity().is_certain());
    let doubtful: Vec<RemoteId> = doubtful.filter_map(T::remote_id).collect();
    if doubtful.is_empty() {
        return tasks;
    }
    let shut_out = connection
        .ask(&doubtful, |worker, remotes| worker.shut_out(remotes))
        .await;
    let mut admitted = Vec::with_capacity(tasks.len());
    for task in tasks {
        let id = task.remote_id().filter(|id| doubtful.contains(id));
        match (&shut_out, id) {
            (_, None) => admitted.push(task),
            (Err(error), _) => task.refuse(CentreError::Unavailable {
                message: error.to_string(),
            }),
            (Ok(list), Some(id)) => match list.iter().find(|(of, _)| *of == id) {
                Some((_, reason)) => task.refuse(CentreError::ShutOut(*reason)),
                None => admitted.push(task),
            },
        }
    }
    admitted
}
