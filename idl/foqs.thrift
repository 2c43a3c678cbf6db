/**
 * The wire contract of foqs: framed binary Thrift over TCP (TFramedTransport with a strict TBinaryProtocol).
 *
 * Names and numbers are fixed. Optional fields may be added; a number is never used again.
 * Times are i64 milliseconds since the epoch (..._at_ms, deliver_after_ms) or durations in milliseconds (..._ms).
 * `required` states what a caller must send; the host checks it and answers INVALID_ARGUMENT.
 *
 * A client calls once at a time on a connection unless it tells answers by their seqid, and drops a connection after any
 * exception that is neither a FoqsError nor a TApplicationException. docs/other-languages.md has programs.
 */
namespace py foqs_wire
namespace js foqs
namespace java foqs
namespace go foqs
namespace cpp foqs
namespace netstd Foqs.Wire
namespace rb FoqsWire
namespace php Foqs
namespace rs foqs
namespace kotlin foqs
namespace swift Foqs

enum DeliveryPolicy {
  /** Delivered until acked, deleted, expired or dead-lettered. */
  AT_LEAST_ONCE = 0,
  /** Delivered once or never; an ended lease deletes the item. */
  AT_MOST_ONCE = 1
}

enum ErrorCode {
  INVALID_ARGUMENT = 1, UNKNOWN_NAMESPACE = 2, TOO_LARGE = 3, RATE_LIMITED = 4, OVERLOADED = 5,
  UNAVAILABLE = 6, NOT_FOUND = 7, STALE_LEASE = 8, PERMISSION_DENIED = 9, ALREADY_EXISTS = 10,
  PAUSED = 11, INTERNAL = 12
}

/**
 * A whole call failed. Nothing of it was done, except where the code is UNAVAILABLE or INTERNAL without nothing_done:
 * then the outcome is unknown.
 */
exception FoqsError {
  1: ErrorCode code,
  2: string message,
  /** When trying again here can succeed. Set with RATE_LIMITED and OVERLOADED, and with UNAVAILABLE where a shard is not served now. */
  3: optional i64 retry_after_ms,
  /**
   * true: certainly nothing of this call was done, so repeating it does nothing twice, whatever the verb. With
   * UNAVAILABLE or OVERLOADED send it at once to another host, if you know one, and let this one rest for a moment:
   * a standby answers so until it takes over. false, or absent with UNAVAILABLE or INTERNAL: it was done or it was not.
   */
  4: optional bool nothing_done
}

/** One position of a batch failed; the other positions stand. */
struct ItemError {
  1: ErrorCode code,
  2: string message,
  /** As in FoqsError. */
  3: optional i64 retry_after_ms,
  /** As in FoqsError, for this position alone: with UNAVAILABLE its shard may be served by another host. */
  4: optional bool nothing_done
}

struct NewItem {
  /** 1..255 bytes of UTF-8 without control characters. Bytes count: case and spaces are significant. */
  1: required string topic,
  2: required binary payload,
  /** Smaller is more urgent. */
  3: i32 priority = 0,
  /** Not delivered before this time. At most one of deliver_after_ms and delay_ms. */
  4: optional i64 deliver_after_ms,
  5: optional i64 delay_ms,
  /** The item is dropped this long after deliver_after. */
  6: optional i64 ttl_ms,
  /** Lease for deliveries of this item when the dequeue call names none. */
  7: optional i64 lease_ms,
  /** Small and mutable: nack may rewrite it. */
  8: optional binary metadata,
  9: optional DeliveryPolicy delivery,
  /** Refused with INVALID_ARGUMENT for now. */
  10: optional string dedup_id,
  /** Refused with INVALID_ARGUMENT for now. */
  11: optional string ordering_key,
  /** Given back with every delivery, such as a W3C traceparent: up to 128 bytes of UTF-8, "" for none. */
  12: optional string trace_context
}

struct EnqueueRequest {
  1: required string namespace_name,
  2: required list<NewItem> items,
  3: bool bulk = false
}

struct EnqueueResponse {
  /** By position; "" where the item failed. */
  1: list<string> ids,
  /** By position. */
  2: map<i32, ItemError> errors,
  /** Positions answered with an earlier item's id. */
  3: list<i32> duplicates
}

struct TopicDemand {
  1: required string topic,
  /** At most this many items of the topic, 1 or more. */
  2: required i32 count,
  /** Refused with INVALID_ARGUMENT for now. */
  3: optional string group
}

struct DequeueRequest {
  1: required string namespace_name,
  2: required list<TopicDemand> topics,
  3: optional i64 lease_ms,
  /** Long poll: how long to wait for the first item when none is ready. */
  4: i64 wait_ms = 0
}

struct Item {
  1: string id,
  /** Names this delivery; ack, nack and extendLease take it. */
  2: string receipt,
  3: string topic,
  4: i32 priority,
  5: binary payload,
  6: binary metadata,
  7: i64 deliver_after_ms,
  8: i64 enqueued_at_ms,
  9: i64 lease_expires_at_ms,
  /** 1 on the first delivery; grows by one with each failed attempt, not with a release. */
  10: i32 attempt,
  11: optional string group,
  12: optional string ordering_key,
  /** As the enqueue gave it. */
  13: optional string trace_context
}

struct DequeueResponse {
  1: list<Item> items
}

struct AckRequest {
  1: required string namespace_name,
  /** Receipts, or bare ids (then without the check for a stale lease). */
  2: required list<string> receipts,
  /**
   * true when an earlier attempt of this call had no answer and may have been done. A receipt whose item is gone then
   * counts as done, where otherwise it gets STALE_LEASE; that now says that the item is there and yours no more.
   */
  3: optional bool repeated
}

struct Nack {
  1: required string receipt,
  2: i64 delay_ms = 0,
  /** Replaces the item's metadata. */
  3: optional binary metadata,
  /** Give back, not a failure: does not count as an attempt. */
  4: bool release = false,
  /** Straight to the dead letters. */
  5: bool dead_letter = false
}

struct NackRequest {
  1: required string namespace_name,
  2: required list<Nack> nacks
}

struct ExtendRequest {
  1: required string namespace_name,
  2: required list<string> receipts,
  /** The lease ends this long after now. */
  3: required i64 lease_ms
}

struct BatchResponse {
  /** By position; empty when all was done. */
  1: map<i32, ItemError> errors
}

struct ActiveTopicsRequest {
  1: required string namespace_name,
  2: string prefix = "",
  3: i32 limit = 1000,
  4: string page_token = ""
}

struct TopicStats {
  1: string topic,
  2: i64 ready,
  3: i64 delayed,
  4: i64 leased,
  5: i64 dead,
  /** Of the ready items; 0 when there are none. */
  6: i32 most_urgent_priority,
  /** Smallest deliver_after of the ready items of the 16 most urgent priorities; 0 when there are none. */
  7: i64 oldest_ready_at_ms,
  8: optional string group
}

struct ActiveTopicsResponse {
  1: list<TopicStats> topics,
  /** "" on the last page. */
  2: string next_page_token
}

service Foqs {
  EnqueueResponse enqueue(1: EnqueueRequest request) throws (1: FoqsError error)
  DequeueResponse dequeue(1: DequeueRequest request) throws (1: FoqsError error)
  BatchResponse ack(1: AckRequest request) throws (1: FoqsError error)
  BatchResponse nack(1: NackRequest request) throws (1: FoqsError error)
  BatchResponse extendLease(1: ExtendRequest request) throws (1: FoqsError error)
  ActiveTopicsResponse getActiveTopics(1: ActiveTopicsRequest request) throws (1: FoqsError error)
}

/* ---- Administration, on the same port ---- */

/** Limits and defaults of a namespace. In a request an absent field keeps its value (update) or takes the default (create). */
struct NamespaceSettings {
  1: optional i64 enqueues_per_minute_max,
  2: optional i32 payload_bytes_max,
  3: optional i32 metadata_bytes_max,
  4: optional i32 batch_items_max,
  5: optional i64 lease_ms_default,
  6: optional i64 lease_ms_max,
  7: optional i64 delay_ms_max,
  8: optional i64 ttl_ms_default,
  9: optional i64 ttl_ms_max,
  10: optional i32 attempts_max,
  /** Enqueue calls are refused with PAUSED. */
  11: optional bool enqueue_paused,
  /** Dequeue calls are refused with PAUSED. */
  12: optional bool dequeue_paused
}

struct Namespace {
  1: string name,
  2: NamespaceSettings settings,
  3: i64 created_at_ms,
  /** It is being deleted: enqueue calls are refused with PAUSED until it is gone, or open again. */
  4: optional bool closing
}

struct CreateNamespaceRequest { 1: required string name, 2: optional NamespaceSettings settings }
struct UpdateNamespaceRequest { 1: required string name, 2: required NamespaceSettings settings }
struct GetNamespaceRequest    { 1: required string name }
struct ListNamespacesRequest  { 1: string prefix = "", 2: i32 limit = 1000, 3: string page_token = "" }
struct ListNamespacesResponse { 1: list<Namespace> namespaces, 2: string next_page_token }
/**
 * Closes the namespace, asks every shard of the cluster, and deletes it if none holds an item of it. Else it is open
 * again: INVALID_ARGUMENT tells how many items there are, UNAVAILABLE which shard did not answer.
 */
struct DeleteNamespaceRequest { 1: required string name }
struct DeleteNamespaceResponse {}
/**
 * Brings back a namespace that shards hold items of and the meta database has lost, as when it was restored from an
 * older state. The host's log tells its number. It gets its old name, or name, and default settings. NOT_FOUND when no
 * shard of this host knows the number.
 */
struct RecoverNamespaceRequest { 1: required i64 number, 2: optional string name }

enum ItemState { READY = 0, DELAYED = 1, LEASED = 2, DEAD = 3 }

/** An item as it lies in the queue, for the operator's eye; a view that gives no lease. */
struct StoredItem {
  1: string id,
  2: string topic,
  3: ItemState state,
  4: i32 priority,
  5: binary payload,
  6: binary metadata,
  7: i64 deliver_after_ms,
  8: i64 enqueued_at_ms,
  9: i64 expires_at_ms,
  /** Failed attempts so far. */
  10: i32 failed_attempts,
  11: DeliveryPolicy delivery,
  /** Only while LEASED. */
  12: optional i64 lease_expires_at_ms,
  /** Only when DEAD. */
  13: optional i64 died_at_ms,
  14: optional string death_reason,
  15: optional i64 lease_ms,
  16: optional string trace_context
}

/** The ready items of one topic, most urgent first, those under lease included. */
struct PeekItemsRequest { 1: required string namespace_name, 2: required string topic, 3: i32 limit = 100, 4: string page_token = "" }
struct GetItemRequest   { 1: required string namespace_name, 2: required string id }
struct StoredItemsResponse { 1: list<StoredItem> items, 2: string next_page_token }
/** Cancels items in whatever state they are; a holder's later ack gets STALE_LEASE. */
struct DeleteItemsRequest { 1: required string namespace_name, 2: required list<string> ids }

struct ListDeadLettersRequest  { 1: required string namespace_name, 2: required string topic, 3: i32 limit = 100, 4: string page_token = "" }
/** Dead letters become ready again with no failed attempts; their TTLs start anew. By ids, or up to limit of the topic's oldest. */
struct RedriveDeadLettersRequest { 1: required string namespace_name, 2: required string topic, 3: optional list<string> ids, 4: i32 limit = 1000 }
/** Dead letters are deleted. By ids, or up to limit of the topic's oldest. */
struct PurgeDeadLettersRequest { 1: required string namespace_name, 2: required string topic, 3: optional list<string> ids, 4: i32 limit = 1000 }
/** count: how many were done. errors: by position of ids. */
struct DeadLettersResponse { 1: i64 count, 2: map<i32, ItemError> errors }

struct HostStatusRequest {}
struct ShardStatus { 1: i32 shard_id, 2: string state /* owned, sick (its breaker is open), lost (not owned now); detail says why */, 3: i64 epoch, 4: i64 items, 5: i64 open_leases, 6: string detail }
struct HostStatus { 1: string host, 2: string version, 3: i64 started_at_ms, 4: list<ShardStatus> shards, 5: bool draining }

service FoqsAdmin {
  Namespace createNamespace(1: CreateNamespaceRequest request) throws (1: FoqsError error)
  Namespace updateNamespace(1: UpdateNamespaceRequest request) throws (1: FoqsError error)
  Namespace getNamespace(1: GetNamespaceRequest request) throws (1: FoqsError error)
  ListNamespacesResponse listNamespaces(1: ListNamespacesRequest request) throws (1: FoqsError error)
  DeleteNamespaceResponse deleteNamespace(1: DeleteNamespaceRequest request) throws (1: FoqsError error)
  Namespace recoverNamespace(1: RecoverNamespaceRequest request) throws (1: FoqsError error)
  StoredItemsResponse peekItems(1: PeekItemsRequest request) throws (1: FoqsError error)
  StoredItem getItem(1: GetItemRequest request) throws (1: FoqsError error)
  BatchResponse deleteItems(1: DeleteItemsRequest request) throws (1: FoqsError error)
  StoredItemsResponse listDeadLetters(1: ListDeadLettersRequest request) throws (1: FoqsError error)
  DeadLettersResponse redriveDeadLetters(1: RedriveDeadLettersRequest request) throws (1: FoqsError error)
  DeadLettersResponse purgeDeadLetters(1: PurgeDeadLettersRequest request) throws (1: FoqsError error)
  HostStatus getHostStatus(1: HostStatusRequest request) throws (1: FoqsError error)
}
