//! Asks which operations this client may perform on topics (KIP-430). The binding has no safe function for it.

use std::ffi::{CString, c_char, c_int};
use std::ptr;
use std::slice;
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::bindings::{
    rd_kafka_AclOperation_t, rd_kafka_AdminOptions_destroy, rd_kafka_AdminOptions_new,
    rd_kafka_AdminOptions_set_include_authorized_operations, rd_kafka_AdminOptions_set_request_timeout,
    rd_kafka_AdminOptions_t, rd_kafka_DescribeTopics, rd_kafka_DescribeTopics_result_topics,
    rd_kafka_TopicCollection_destroy, rd_kafka_TopicCollection_of_topic_names,
    rd_kafka_TopicDescription_authorized_operations, rd_kafka_TopicDescription_error, rd_kafka_TopicDescription_t,
    rd_kafka_admin_op_t, rd_kafka_error_code, rd_kafka_error_destroy, rd_kafka_event_DescribeTopics_result,
    rd_kafka_event_destroy, rd_kafka_event_error, rd_kafka_event_t, rd_kafka_queue_destroy, rd_kafka_queue_new,
    rd_kafka_queue_poll, rd_kafka_resp_err_t, rd_kafka_t,
};
use rdkafka::client::Client;
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::types::RDKafkaErrorCode as Code;

const WRITE: rd_kafka_AclOperation_t = rd_kafka_AclOperation_t::RD_KAFKA_ACL_OPERATION_WRITE;
const NO_ERROR: rd_kafka_resp_err_t = rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR;

/// The answer comes when the request's own time is over, at the latest.
const ANSWER_OVERDUE: Duration = Duration::from_secs(1);

/// An object of the client library that we must free.
struct Owned<T> {
    object: *mut T,
    free: unsafe extern "C" fn(*mut T),
}

impl<T> Owned<T> {
    /// `None` if the library has returned none.
    fn new(object: *mut T, free: unsafe extern "C" fn(*mut T)) -> Option<Self> {
        (!object.is_null()).then_some(Owned { object, free })
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: the object is ours, `free` is the function that the library has for it, and nobody uses the object after this.
        unsafe { (self.free)(self.object) }
    }
}

/// May this client write to the topics? One answer for each, in their order; `None` where the brokers do not tell. No name may
/// come twice. Blocks.
pub fn may_write<C: ClientContext>(
    client: &Client<C>,
    topics: &[&str],
    within: Duration,
) -> KafkaResult<Vec<Result<Option<bool>, Code>>> {
    let answer = describe(client.native_ptr(), topics, within)?;
    let mut count = 0;
    // SAFETY: the event lives until the end of this function, and what it contains lives as long. The result is checked before it
    // is read, and `count` is how many descriptions there are.
    unsafe {
        let error = rd_kafka_event_error(answer.object);
        if error != NO_ERROR {
            return Err(KafkaError::AdminOp(error.into()));
        }
        let result = rd_kafka_event_DescribeTopics_result(answer.object);
        if result.is_null() {
            return Err(KafkaError::AdminOpCreation("the answer describes no topics".to_owned()));
        }
        let described = rd_kafka_DescribeTopics_result_topics(result, &mut count);
        if described.is_null() {
            return Ok(Vec::new());
        }
        let described = slice::from_raw_parts(described, count);
        Ok(described.iter().map(|topic| is_writable(*topic)).collect())
    }
}

/// Sends the request and waits for the event that answers it.
fn describe(client: *mut rd_kafka_t, topics: &[&str], within: Duration) -> KafkaResult<Owned<rd_kafka_event_t>> {
    let names: Vec<CString> = topics
        .iter()
        .map(|topic| CString::new(*topic))
        .collect::<Result<_, _>>()?;
    let mut pointers: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
    let refused = || KafkaError::AdminOpCreation("the client library refuses the request".to_owned());
    // SAFETY: the client outlives this call, and so do the names. The library copies the names and the options before it returns,
    // and keeps the queue, which is freed last, for as long as it needs it.
    unsafe {
        let queue = Owned::new(rd_kafka_queue_new(client), rd_kafka_queue_destroy).ok_or_else(refused)?;
        let collection = rd_kafka_TopicCollection_of_topic_names(pointers.as_mut_ptr(), pointers.len());
        let collection = Owned::new(collection, rd_kafka_TopicCollection_destroy).ok_or_else(refused)?;
        let options = options(client, within).ok_or_else(refused)?;
        rd_kafka_DescribeTopics(client, collection.object, options.object, queue.object);
        let event = rd_kafka_queue_poll(queue.object, milliseconds(within + ANSWER_OVERDUE));
        Owned::new(event, rd_kafka_event_destroy).ok_or(KafkaError::AdminOp(Code::OperationTimedOut))
    }
}

/// The options of the request: to include what we may do, and how long it may take.
///
/// # Safety
///
/// The client must be alive.
unsafe fn options(client: *mut rd_kafka_t, within: Duration) -> Option<Owned<rd_kafka_AdminOptions_t>> {
    // SAFETY: the client is alive, and the options are ours. An error that is returned is ours to free.
    unsafe {
        let describe_topics = rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS;
        let options = Owned::new(
            rd_kafka_AdminOptions_new(client, describe_topics),
            rd_kafka_AdminOptions_destroy,
        )?;
        let within = milliseconds(within);
        let set = rd_kafka_AdminOptions_set_request_timeout(options.object, within, ptr::null_mut(), 0);
        let error = rd_kafka_AdminOptions_set_include_authorized_operations(options.object, 1);
        let error = Owned::new(error, rd_kafka_error_destroy);
        (set == NO_ERROR && error.is_none()).then_some(options)
    }
}

/// # Safety
///
/// The description must be one that the library has returned, and its event alive.
unsafe fn is_writable(topic: *const rd_kafka_TopicDescription_t) -> Result<Option<bool>, Code> {
    let mut count = 0;
    // SAFETY: the description is alive, and `count` is how many operations there are.
    unsafe {
        let error = rd_kafka_TopicDescription_error(topic);
        if !error.is_null() {
            return Err(rd_kafka_error_code(error).into());
        }
        let operations = rd_kafka_TopicDescription_authorized_operations(topic, &mut count);
        if operations.is_null() {
            return Ok(None);
        }
        // Without a single operation the array has no elements, and is not aligned for any.
        Ok(Some(
            count > 0 && slice::from_raw_parts(operations, count).contains(&WRITE),
        ))
    }
}

fn milliseconds(duration: Duration) -> c_int {
    c_int::try_from(duration.as_millis()).unwrap_or(c_int::MAX)
}
