/**
 * The wire contract of foqs: framed binary Thrift over TCP (TFramedTransport with a strict TBinaryProtocol).
 *
 * Names and numbers are fixed. Optional fields may be added; a number is never reused.
 * Times are i64 milliseconds since the epoch (..._at_ms, deliver_after_ms) or durations in milliseconds (..._ms).
 * `required` marks what a caller must send. The host checks it and responds with INVALID_ARGUMENT.
 *
 * A client sends one call at a time on a connection, unless it matches responses to calls by their seqid. It closes a
 * connection after any exception that is neither a FoqsError nor a TApplicationException. docs/other-languages.md has
 * programs.
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
  /** The item is delivered until it is acked, deleted, expired or dead-lettered. */
  AT_LEAST_ONCE = 0,
  /** The item is delivered once or never; the end of its lease deletes it. */
  AT_MOST_ONCE = 1
}

enum ErrorCode {
  INVALID_ARGUMENT = 1, UNKNOWN_NAMESPACE = 2, TOO_LARGE = 3, RATE_LIMITED = 4, OVERLOADED = 5,
  UNAVAILABLE = 6, NOT_FOUND = 7, STALE_LEASE = 8, PERMISSION_DENIED = 9, ALREADY_EXISTS = 10,
  PAUSED = 11, INTERNAL = 12
}

/**
 * The whole call failed, and nothing was done. Only with UNAVAILABLE or INTERNAL, and without nothing_done, the outcome
 * is unknown.
 */
exception FoqsError {
  1: ErrorCode code,
  2: string message,
  /**
   * How long to wait before a retry on this host can succeed. It is set with RATE_LIMITED and OVERLOADED, and with
   * UNAVAILABLE if a shard is not served now.
   */
  3: optional i64 retry_after_ms,
  /**
   * If true, certainly nothing was done, so a retry does nothing twice, whatever the call. With UNAVAILABLE or
   * OVERLOADED, retry at once on another host if you know one, and leave this one alone for a moment: a standby
   * responds like this until it takes over. If false, or absent with UNAVAILABLE or INTERNAL, the outcome is unknown.
   */
  4: optional bool nothing_done,
  /** With PERMISSION_DENIED and INTERNAL: an id of the call, which is in the message too, and of INTERNAL in the log. */
  5: optional string request_id
}

/** One position of a batch failed. The other positions are not affected. */
struct ItemError {
  1: ErrorCode code,
  2: string message,
  /** The same as in FoqsError. */
  3: optional i64 retry_after_ms,
  /** The same as in FoqsError, for this position alone. With UNAVAILABLE, another host may serve its shard. */
  4: optional bool nothing_done
}

/** How long the dedup_id of an item is taken. */
enum DedupUntil {
  /** As long as the dedup window of the namespace lasts, whatever becomes of the item. */
  WINDOW = 0,
  /** As long as the item lives, however long that is. It is free once the item is acked, deleted, expired or dead: that
      of an item with copies for several consumer groups once the last copy is. */
  ACKED = 1
}

struct NewItem {
  /** 1 to 255 bytes of UTF-8 without control characters. Names are compared byte by byte, so case and spaces matter. */
  1: required string topic,
  /** The content for the consumer; the queue never looks into it. */
  2: required binary payload,
  /** Items with a smaller number are delivered first. */
  3: i32 priority = 0,
  /** The item is not delivered before this time. Set either this or delay_ms. */
  4: optional i64 deliver_after_ms,
  /** The item is not delivered before this long after its enqueue. */
  5: optional i64 delay_ms,
  /** The item expires this long after its deliver_after_ms. */
  6: optional i64 ttl_ms,
  /** The lease of a delivery of this item if the dequeue names none. */
  7: optional i64 lease_ms,
  /** A small value beside the payload, which a nack can replace. */
  8: optional binary metadata,
  /** At least once if absent. */
  9: optional DeliveryPolicy delivery,
  /** 1 to 255 bytes of UTF-8, compared byte by byte. Of the items of a namespace with the same dedup_id only the first
      one is made, as long as its dedup window lasts; the others get its id. An id of an item with an ordering key is
      known in this key alone, and one of a serial topic in that topic alone. */
  10: optional string dedup_id,
  /** 1 to 128 bytes of UTF-8 without control characters. Items of a topic with the same key are delivered one at a time,
      in the order of priority and commit, in each consumer group by itself. Not with deliver_after_ms or delay_ms. */
  11: optional string ordering_key,
  /** Returned with every delivery, for instance a W3C traceparent: up to 128 bytes of UTF-8, or "" for none. */
  12: optional string trace_context,
  /** How long the dedup_id is taken: for its dedup window if absent. Refused without a dedup_id. */
  13: optional DedupUntil dedup_until,
  /** 1 to 64 bytes of UTF-8 without control characters. Items of a topic with the same priority are delivered by turns
      over the keys that have items, those without a key being one more. Not with ordering_key. */
  14: optional string fairness_key
}

struct EnqueueRequest {
  1: required string namespace_name,
  2: required list<NewItem> items,
  /**
   * True for large loads that are not urgent. The call gives way to all others. Then it can be done in part: positions
   * from one on get errors such as OVERLOADED or RATE_LIMITED, and may be sent again.
   */
  3: bool bulk = false,
  /**
   * Names a job record of the namespace: the items count for it, and its rate holds. NOT_FOUND says that there is no
   * such record. RATE_LIMITED says when the call has its turn.
   */
  4: optional string job_id
}

struct EnqueueResponse {
  /**
   * The ids by position, or "" where the item failed. The id of an item that has a copy in each of several consumer groups
   * names all its copies: it ends in "+" and the number of copies behind the first one.
   */
  1: list<string> ids,
  /** The errors by position. */
  2: map<i32, ItemError> errors,
  /** Positions that got the id of an item with the same dedup_id that was enqueued before, in order. */
  3: list<i32> duplicates
}

struct TopicDemand {
  1: required string topic,
  /** The maximum number of items of this topic, 1 or more. */
  2: required i32 count,
  /**
   * A consumer group of the topic, which was declared by createGroup: NOT_FOUND says that it was not. "" or absent is the
   * topic's own group.
   */
  3: optional string group
}

struct DequeueRequest {
  1: required string namespace_name,
  /** Empty with topic_prefix. */
  2: required list<TopicDemand> topics,
  /** The lease of the items. If absent, each item's own lease counts, or else the default of the namespace. */
  3: optional i64 lease_ms,
  /** Long poll: how long to wait for the first item if none is ready. */
  4: i64 wait_ms = 0,
  /**
   * Takes items of any topics whose names begin with this; "" for all topics. Topics that have something get turns by
   * their weights, and of each the most urgent items come first.
   */
  5: optional string topic_prefix,
  /** With topic_prefix: the maximum number of items in all. */
  6: optional i32 count,
  /**
   * True of a client that says in extendLease, as `begun`, on which items it has begun to work. What it has not said so
   * when a lease ends was no failed attempt. An item that is a suspect comes alone in a response to it.
   */
  7: optional bool says_begun,
  /** Wants why_empty in a response without items, which costs a question to each host. */
  8: optional bool want_why,
  /** With topic_prefix: takes the items that these topics have for this consumer group. Absent: those of no group. */
  9: optional string group,
  /**
   * The name of the consumer, for operators: 1 to 128 bytes of UTF-8 without control characters. It is what the caller
   * says, and no identity. Absent: the address of the caller.
   */
  10: optional string consumer
}

struct Item {
  1: string id,
  /** Identifies this delivery for ack, nack and extendLease. */
  2: string receipt,
  3: string topic,
  4: i32 priority,
  5: binary payload,
  6: binary metadata,
  7: i64 deliver_after_ms,
  8: i64 enqueued_at_ms,
  9: i64 lease_expires_at_ms,
  /** 1 on the first delivery. It grows by one with each failed attempt, but not with a release. */
  10: i32 attempt,
  11: optional string group,
  /** The one that the enqueue gave. */
  12: optional string ordering_key,
  /** The value that the enqueue gave. */
  13: optional string trace_context,
  /**
   * Only with says_begun. True if a lease of the item has ended while somebody worked on it, maybe because the item
   * ended the program: work on it while the program does nothing else, so that nothing else suffers.
   */
  14: optional bool suspect,
  /** The one that the enqueue gave. */
  15: optional string fairness_key
}

/** Why items are not delivered. Later versions can have others: then the text has all that is known. */
enum ReasonCode {
  /** Nothing is stored under the id of the item. */
  GONE = 1,
  /** Items are dead letters. */
  DEAD = 2,
  /** Items are not due yet. */
  DELAYED = 3,
  /** Items are due, and are about to become ready. */
  WAKING = 4,
  /** Items are under lease. */
  LEASED = 5,
  /** The end of an item is being written. */
  SETTLING = 6,
  /** The former owner of the shard died with the item claimed: it is possibly with a consumer. */
  INHERITED = 7,
  /** Items are claimed for consumers. */
  CLAIMED = 8,
  /** The TTL of the item is over: it is about to be deleted. */
  EXPIRED = 9,
  /** Other items come first. */
  BEHIND = 10,
  /** No call waits for the items, and no consumer has some. */
  NO_CONSUMERS = 11,
  /** No consumer waits: all are busy. */
  CONSUMERS_SLOW = 12,
  /** A fifth or more of the attempts of the last minute failed, and their items come again. */
  ATTEMPTS_FAIL = 13,
  TOPIC_PAUSED = 14,
  NAMESPACE_PAUSED = 15,
  /** Ready items wait for tokens of a cap on deliveries. */
  TOPIC_CAPPED = 16,
  NAMESPACE_CAPPED = 17,
  /** The host that has the tokens of a cap does not answer. */
  CAP_HOME_AWAY = 18,
  /** As many items are in flight as the topic can have. */
  IN_FLIGHT_FULL = 19,
  /** Ready items wait until leases end: their shard has as many as it can. */
  LEASES_FULL = 20,
  /** The host holds as many claimed items as fit into its memory. */
  PREFETCH_FULL = 21,
  /** Ready items are being read from the database. */
  REFILLING = 22,
  /** A shard was not asked: its server fails. It may have ready items. */
  SHARD_SICK = 23,
  /** A shard was not asked: no host serves it. It may have ready items. */
  UNSERVED = 24,
  /** A shard is on its way to another host. */
  LEAVING = 25,
  /** An operator has parked a shard, so it was not asked. It may have ready items. */
  PARKED = 26,
  /** Hosts name different owners of a shard. */
  MAP_DIFFERS = 27,
  /** A host was not asked: it does not answer. It may have ready items. */
  HOST_SILENT = 28,
  /** Items are ready on a host, and consumers wait on another one, which has not heard of them yet. */
  OTHER_HOST_LATE = 29,
  /** There is no item of it on any shard. */
  NOTHING_THERE = 30,
  /** Topics that were not looked at, because the call names many. */
  NOT_LOOKED_AT = 31,
  /** Items are about to be delivered. */
  ON_THE_WAY = 32,
  /** A serial topic has a delivery out, or an item that waits for its next attempt: the others wait for its end. */
  SERIAL_BUSY = 33,
  /** The same of items with an ordering key. */
  KEY_BUSY = 34,
  /** A dead letter holds the items behind it. */
  HELD_BY_DEAD = 35,
  /** Items of a serial topic are on their way to another shard. */
  SLOT_MOVING = 36,
  /** The shard was just opened and still counts its rows, before which no item with an order is delivered. */
  COUNTING = 37,
  /** The consumer group does not exist. */
  NO_GROUP = 38,
  /** No more items are taken. */
  ENQUEUE_PAUSED = 40,
  NAMESPACE_CLOSING = 41,
  QUOTA_USED = 42,
  /** No shard for new items of the namespace: all drain. */
  NO_SHARD_TAKES = 44,
  /** The topic has as many items as it can have. */
  DEPTH_FULL = 48,
  /** Items are ready, and none of the other reasons holds: a defect. The host logs `stuck` with all that is known. */
  UNEXPLAINED = 99
}

struct Reason {
  1: ReasonCode code,
  /** For people. */
  2: string text,
  /** When it ends, in milliseconds since the epoch; 0 if nobody knows, or only somebody can end it. */
  3: i64 until_ms,
  /** The items that it holds back, if it is of items. */
  4: i64 count,
  5: string topic,
  /** Empty for callers without WATCH, whose texts have no errors of hosts either. */
  6: string host,
  /** -1 if it is of no shard. */
  7: i32 shard_id = -1,
  /** A command that helps, if there is one. */
  8: string remedy
}

struct DequeueResponse {
  1: list<Item> items,
  /** With want_why and without items: the reasons, the one that decides first, 1 to 8 of them. */
  2: optional list<Reason> why_empty
}

/** The state of items, in a word. */
enum Verdict {
  MOVING = 0,
  /** They move, and something limits how fast, or they wait for a time that is known. */
  SLOW = 1,
  /** They stay until somebody acts. */
  STOPPED = 2,
  EMPTY = 3,
  /** The item is not stored. */
  GONE = 4,
  UNEXPLAINED = 5
}
/**
 * Why an item, the items of a topic, or those of a namespace are not delivered: with an item_id, with a topic, with
 * neither. All living hosts are asked, for 2 s at most. A host does 50 a second, beyond that it is OVERLOADED.
 */
struct ExplainRequest {
  1: required string namespace_name,
  2: string topic = "",
  /** Not together with any of the others. */
  3: string item_id = "",
  /** Of the topic; "" or absent for its own items. */
  4: optional string group,
  /** Only the items of the topic with this key. */
  5: optional string ordering_key,
  /** The same, in place of ordering_key. */
  6: optional string fairness_key
}
struct ExplainResponse {
  1: Verdict verdict,
  /** One sentence. */
  2: string summary,
  /** The one that decides first, 1 to 16 of them. */
  3: list<Reason> reasons,
  /** When this was so, by the clock of the host that was asked. */
  4: i64 as_of_ms,
  /** With an item that is ready: the items that come before it. */
  5: i64 ahead_count,
  /** If false, there are at least so many. */
  6: bool ahead_is_exact,
  /** 0 if unknown. */
  7: i64 expected_wait_ms,
  /** The hosts and shards that were not asked, in words; empty for callers without WATCH. */
  8: list<string> missing
}

struct AckRequest {
  1: required string namespace_name,
  /** Receipts, or bare ids, for which the lease is not checked and the caller needs ALTER, as for deleteItems. */
  2: required list<string> receipts,
  /**
   * Set it to true if an earlier attempt of this call got no response and may have been done. A receipt whose item is
   * gone then succeeds instead of getting STALE_LEASE. STALE_LEASE then means that the item is still there, and that
   * this lease has ended.
   */
  3: optional bool repeated
}

struct Nack {
  /** A receipt, or a bare id, for which the lease is not checked and the caller needs ALTER. */
  1: required string receipt,
  /** The item is not delivered again before this long from now. */
  2: i64 delay_ms = 0,
  /** Replaces the metadata of the item. */
  3: optional binary metadata,
  /** Returns the item without counting a failed attempt. */
  4: bool release = false,
  /** Moves the item to the dead letters at once. */
  5: bool dead_letter = false,
  /**
   * With release: the delivery has reached nobody, so an at-most-once item is not deleted. A client sets it of items that
   * came after their caller had given up, and hosts do. Older hosts refuse it from clients with INVALID_ARGUMENT.
   */
  6: optional bool unseen,
  /**
   * Why the attempt failed, for operators: a part of the errors and of the death_reason of the item. No reason is refused:
   * it is cut to 500 bytes at a character, control characters become spaces, and bytes that are not UTF-8 are replaced.
   */
  7: optional string reason
}

struct NackRequest {
  1: required string namespace_name,
  2: required list<Nack> nacks
}

struct ExtendRequest {
  1: required string namespace_name,
  /** Receipts, or bare ids, for which the lease is not checked and the caller needs ALTER. */
  2: required list<string> receipts,
  /** The leases end this long from now. */
  3: required i64 lease_ms,
  /**
   * Receipts of deliveries on which the client begins to work; their leases stay as they are. The errors have the
   * positions behind those of `receipts`, which may be empty then. See says_begun in DequeueRequest.
   */
  4: optional list<string> begun,
  /** As in DequeueRequest: the name of who has these leases from now on. Absent: the leases keep their names. */
  5: optional string consumer
}

struct BatchResponse {
  /** The errors by position; empty if all positions succeeded. */
  1: map<i32, ItemError> errors
}

struct ActiveTopicsRequest {
  1: required string namespace_name,
  /** Only topics whose names begin with this. */
  2: string prefix = "",
  /** The maximum number of topics. */
  3: i32 limit = 1000,
  /** The next_page_token of the previous page, or "" for the first page. */
  4: string page_token = "",
  /** If true, shards and hosts that do not respond are left out and named in `missing`, instead of failing the call. */
  5: optional bool partial,
  /** Only these shards, all of which the host must serve: UNAVAILABLE says that it does not. From hosts alone. */
  6: optional list<i32> shard_ids,
  /** If true, each topic has its rates. A topic without activity in the last 15 minutes has none. */
  7: optional bool with_rates
}

/**
 * How fast a topic moves, items of its keys included: averages of all hosts together that forget exponentially, over 1 and
 * 15 minutes, as the load of Unix. They begin at 0, so that a topic that was still shows two thirds of its rate after a
 * minute. enqueued counts stored items; delivered counts deliveries; ended counts items that left the topic: acked,
 * delivered at most once, expired before a delivery, or dead; failed counts attempts that were nacked or whose lease ended.
 */
struct TopicRates {
  1: string topic,
  /** Items per second over 1 minute. */
  2: double enqueued_1min,
  3: double delivered_1min,
  4: double ended_1min,
  5: double failed_1min,
  /** Items per second over 15 minutes. */
  6: double enqueued_15min,
  7: double delivered_15min,
  8: double ended_15min,
  9: double failed_15min,
  /**
   * Counts by time slot of RatesResponse, only with with_series: -1 where no host knows it. A host has the series of
   * 5,000 topics, the busiest ones of each namespace, from the time on at which they are among these.
   */
  10: optional list<i32> enqueued_series,
  11: optional list<i32> delivered_series,
  12: optional list<i32> ended_series,
  13: optional list<i32> failed_series,
  /** The ready items in the slot. */
  14: optional list<i32> ready_series,
  /** The consumer group whose copies are counted. */
  15: optional string group,
  /** The ready items, up to 10 s ago, or longer on a host with many busy topics. */
  16: i64 ready
}

struct TopicStats {
  1: string topic,
  2: i64 ready,
  3: i64 delayed,
  4: i64 leased,
  5: i64 dead,
  /**
   * The smallest priority of the ready items; 0 if there are none. Of a topic that ages: the smallest one of the items that
   * come next on each host.
   */
  6: i32 most_urgent_priority,
  /**
   * The smallest deliver_after_ms among the ready items of the 16 most urgent priorities; 0 if there are none. Of a topic that
   * ages: among the first 256 items on each shard.
   */
  7: i64 oldest_ready_at_ms,
  8: optional string group,
  /** Whether the topic is serial, as its policy says. */
  9: optional bool serial,
  /** The most items under lease at the same time on all hosts together; absent if the topic has no such limit. */
  10: optional i32 in_flight_max,
  /** How many ordering keys have items, which are part of all counts above; absent without any. */
  11: optional i64 ordering_keys,
  /** How many fairness keys have items, which are part of all counts above; absent without any. */
  12: optional i64 fairness_keys,
  /** Only with with_rates, and without series. */
  13: optional TopicRates rates
}

struct ActiveTopicsResponse {
  1: list<TopicStats> topics,
  /** "" on the last page. */
  2: string next_page_token,
  /** With partial: whose items are not counted, each in words. */
  3: optional list<string> missing
}

struct ShardMapRequest {
  /** The namespace whose key_spread and dedup_window_ms are wanted. */
  1: optional string namespace_name
}

struct ShardAddress {
  1: i32 shard_id,
  /** The address of the host that owns the shard, as "name:port". */
  2: string address
}

/**
 * Which shard takes an item with a dedup_id. Any host takes it and finds the shard by itself, but a call whose items all
 * go to one shard costs less. docs/other-languages.md says how a client groups its items.
 */
struct ShardMap {
  /** It grows with every change of shard_by_slot. */
  1: i64 version,
  /**
   * The shards of the 1,024 slots. The slot of a dedup_id is
   * (crc32(namespace_name) + crc32(dedup_id) mod key_spread) mod 1024, with the CRC-32 of zlib over UTF-8.
   */
  2: list<i32> shard_by_slot,
  /** Where the owners of the shards listen, as far as this host knows: all hosts of the cluster are asked. */
  3: list<ShardAddress> addresses,
  /** Set only if the request names a namespace. */
  4: optional i32 key_spread,
  /**
   * The age of the oldest dedup_id that is surely still known in the namespace, the least of all shards. Absent if
   * none of them has forgotten one yet.
   */
  5: optional i64 dedup_window_ms
}

struct EndWaitRequest {
  /** The namespace of the dequeue. */
  1: required string namespace_name,
  /** The seqid of the dequeue, which was sent on the same connection. */
  2: required i32 seqid
}
struct EndWaitResponse {}

/** What a principal holds in one namespace, or in all whose names begin with a prefix. */
struct AccessGrant {
  /** NAME for one namespace, PREFIX* for all whose names begin so, * for all. */
  1: required string namespaces,
  /** Names of roles, such as producer, consumer, owner and admin. */
  2: required list<string> roles
}

struct AuthenticateRequest {
  1: required string token
}
struct WhoAmIRequest {}

/** Who calls over a connection. */
struct Identity {
  /** "everybody" if access is open and the caller has shown no credential, "nobody" if it is not open. */
  1: required string principal,
  /** When the credential ends; 0 if it does not end by itself. Authenticate again before, on the same connection. */
  2: required i64 expires_at_ms,
  3: required list<AccessGrant> grants
}

service Foqs {
  EnqueueResponse enqueue(1: EnqueueRequest request) throws (1: FoqsError error)
  DequeueResponse dequeue(1: DequeueRequest request) throws (1: FoqsError error)
  BatchResponse ack(1: AckRequest request) throws (1: FoqsError error)
  BatchResponse nack(1: NackRequest request) throws (1: FoqsError error)
  BatchResponse extendLease(1: ExtendRequest request) throws (1: FoqsError error)
  ActiveTopicsResponse getActiveTopics(1: ActiveTopicsRequest request) throws (1: FoqsError error)
  ShardMap getShardMap(1: ShardMapRequest request) throws (1: FoqsError error)
  /**
   * Ends the wait of a dequeue, which gets its response at once, most often with no items. It is done too if the dequeue
   * has its response already. A response with items that nobody waits for is to be given back: nack with release and
   * unseen.
   */
  EndWaitResponse endWait(1: EndWaitRequest request) throws (1: FoqsError error)
  /**
   * Makes the connection that of the principal of this token, from this call on. It can be called again at any time,
   * with a token of the same principal. A wrong token is refused with PERMISSION_DENIED, whatever the mode of access.
   */
  Identity authenticate(1: AuthenticateRequest request) throws (1: FoqsError error)
  /** Says who the host takes the caller for. Everybody may ask. */
  Identity whoAmI(1: WhoAmIRequest request) throws (1: FoqsError error)
}

/* ---- Administration, on the same port ---- */

/** Where two items with one dedup_id are the same item. */
enum DedupScope {
  /** Anywhere in their namespace. */
  NAMESPACE = 0,
  /** In one topic alone: each topic has ids of its own. */
  TOPIC = 1
}

/** What becomes of an item with a dedup_id while the shard of its slot is away. */
enum DedupWhenAway {
  /** The item fails with UNAVAILABLE, nothing_done and retry_after_ms. */
  REFUSE = 0,
  /** Another shard takes it as if it had no id, and each call makes an item of each of its ids meanwhile. */
  ACCEPT = 1
}

/** What a dead letter does to the other items of a serial topic. */
enum OnDead {
  /** The next item is delivered. */
  CONTINUE = 0,
  /** Nothing is delivered until the dead letter is redriven, deleted or purged. */
  HOLD = 1
}

/** Limits and defaults of a namespace. If a field is absent, an update keeps its value and a creation takes the default. */
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
  /** While true, enqueues get PAUSED. */
  11: optional bool enqueue_paused,
  /** While true, dequeues get PAUSED. */
  12: optional bool dequeue_paused,
  /** How long a dedup_id is known again after its item was enqueued. */
  13: optional i64 dedup_ms,
  /** How many of the last dedup_ids a shard keeps as long as dedup_ms says; beyond them it may forget earlier. */
  14: optional i64 dedup_ids,
  /** Set by the creation alone: an update with another value gets INVALID_ARGUMENT. */
  15: optional DedupScope dedup_scope,
  /** Over how many slots dedup_ids spread, a power of two. Set by the creation alone, like dedup_scope. */
  16: optional i32 key_spread,
  17: optional DedupWhenAway dedup_when_away,
  /**
   * Of how many in a thousand items the end of their life is in the event log of their host, if it keeps one. The id of
   * an item decides. 0 (default) is none, 1000 is all.
   */
  18: optional i32 events_per_mille,
  /** The maximum rate of deliveries of all topics together, or 0 (default) for no limit. */
  19: optional double deliveries_per_second_max,
  /** Why it is paused, up to 512 bytes of UTF-8: a part of the message of PAUSED. */
  20: optional string pause_reason,
  /**
   * Its items go to shards of this tier, which the hosts of the same tier serve; up to 64 of A-Z a-z 0-9 . _ -, or empty.
   * After a change, items stay where they are until they are done. Items with dedup_ids go where their slots lead.
   */
  21: optional string tier,
  /**
   * While true, an item that expires and never failed becomes a dead letter; else it is deleted. One that did fail becomes
   * a dead letter in any case.
   */
  22: optional bool dead_letter_on_expiry,
  /**
   * Bytes of the reasons of its last failures that an item keeps, with 15 more of each: 1,024 by default, 2,048 at most.
   * 0: no reason of a consumer is stored, nor is it in the death_reason of dead letters.
   */
  23: optional i32 errors_bytes_max
}

struct Namespace {
  1: string name,
  2: NamespaceSettings settings,
  3: i64 created_at_ms,
  /** True while the namespace is being deleted. Enqueues get PAUSED until it is gone, or open again. */
  4: optional bool closing
}

struct CreateNamespaceRequest { 1: required string name, 2: optional NamespaceSettings settings }
struct UpdateNamespaceRequest { 1: required string name, 2: required NamespaceSettings settings }
struct GetNamespaceRequest    { 1: required string name }
struct ListNamespacesRequest  { 1: string prefix = "", 2: i32 limit = 1000, 3: string page_token = "" }
struct ListNamespacesResponse { 1: list<Namespace> namespaces, 2: string next_page_token }
/**
 * Closes the namespace, asks every shard of the cluster, and deletes the namespace if no shard holds an item of it.
 * Otherwise it is open again: INVALID_ARGUMENT says how many items are known of, UNAVAILABLE which shard did not respond.
 */
struct DeleteNamespaceRequest { 1: required string name }
struct DeleteNamespaceResponse {}
/**
 * Restores a namespace that shards hold items of and that the meta database has lost, for instance because it was
 * restored from an old backup. The log of the host has its number. The namespace gets its old name, or `name`, and
 * these settings, or the defaults where they are absent. Its name, key_spread and dedup_scope have to be what they
 * were, or dedup_ids that its shards hold are not known again. NOT_FOUND says that no shard of this host knows the
 * number. Another name needs the permissions OPERATE and ACCESS, because it decides who reads the items.
 */
struct RecoverNamespaceRequest { 1: required i64 number, 2: optional string name, 3: optional NamespaceSettings settings }

/** A flag of a topic that can be unset; then what the namespace says holds. */
enum TriState {
  UNSET = 0,
  ON = 1,
  OFF = 2
}

/** What operators say of one topic, which need not have items; or of all topics that begin with a prefix. */
struct TopicPolicy {
  /** The name of the topic, or the prefix. */
  1: string topic,
  /** While true, items of the topic get PAUSED at their positions of an enqueue. */
  2: bool enqueue_paused,
  /** While true, nothing of the topic is delivered. Dequeues that name no other topic get PAUSED. */
  3: bool dequeue_paused,
  /** Why it is paused, up to 512 bytes of UTF-8: a part of the message of PAUSED. */
  4: string reason,
  /** The maximum rate of deliveries, whatever the priorities of the items, or 0 for no limit. */
  5: double deliveries_per_second_max,
  /** Its share of dequeues with topic_prefix, beside other topics that have something: 1 (default) to 100. */
  6: i32 weight,
  /** Whether it is the policy of a prefix, which holds for each topic that begins so, by itself. */
  7: optional bool is_prefix,
  /** The fields that are set for the topic or the prefix itself. Of a topic, the others are of the longest prefix. */
  8: optional list<string> own_fields,
  /** The consumer group whose policy it is; absent for the topic's own. A group has no policy of enqueues. */
  9: optional string group,
  /** The failed attempts after which an item becomes a dead letter; 0 for as many as the namespace says. */
  10: optional i32 attempts_max,
  /**
   * From so many ready, delayed and leased items in the cluster on, enqueues get PAUSED at their positions; 0 for no
   * limit. Items of several hosts at a time can go over it, by what they enqueue within a second.
   */
  11: optional i64 depth_max,
  /** Whether an item that expires and never failed becomes a dead letter; UNSET for what the namespace says. */
  12: optional TriState dead_letter_on_expiry,
  /**
   * How long an item is delayed after its first failed attempt, a nack without delay_ms or a lost lease; twice as long
   * after each further one. 0 for no delay.
   */
  13: optional i64 backoff_ms,
  /** The longest such delay; 0 for the longest delay of any item. */
  14: optional i64 backoff_ms_max,
  /** The most items under lease at the same time on all hosts together, 1 to 1,000,000; 0 for no limit. */
  15: optional i32 in_flight_max,
  /**
   * Whether the topic is serial: at most one of its items is out in the whole cluster, the next one is delivered when that
   * one was acked, deleted, has expired or is dead, and items come in the order of priority and commit. Each of its groups
   * is serial by itself. Its items cannot have deliver_after_ms or delay_ms.
   */
  16: optional bool serial,
  17: optional OnDead on_dead,
  /**
   * 0: strict priorities. 1 to 86,400,000: an item becomes more urgent by one priority with each so many ms of waiting
   * from its deliver_after, so one of priority p is overtaken only by items of priority q < p that became due less than
   * (p - q) times as long after it. An item keeps its place when this changes, or when it fails; a redriven one gets a new
   * one. Not with serial, key_buckets or items with a key: INVALID_ARGUMENT. A group ages by its own policy.
   */
  18: optional i32 aging_ms_per_priority,
  /**
   * 0: each ordering_key is a sequence by itself. 1 to 4,096: keys share this many sequences, by their CRC-32, so that very
   * many keys cost no more than these, and a slow key delays those of its bucket. Its items do not show their keys.
   */
  19: optional i32 key_buckets,
  /**
   * 0 or 1: one item of an ordering_key, or of the serial topic, is out at a time. Up to 1,000: one dequeue gets up to so many
   * of them together, in order, and the next ones are delivered when all of these have ended. If one of them comes back, by a
   * nack or as its lease ends, so do those behind it that have not ended: their receipts get STALE_LEASE.
   */
  20: optional i32 key_batch
}
/**
 * Changes what is given, and returns what holds then. It holds on every host within 2 s, also for calls that wait. A field
 * that gets the value which it would have without is not set any more, and a policy with no field set is none:
 * INVALID_ARGUMENT says that a namespace has too many topics or prefixes with policies.
 */
struct SetTopicPolicyRequest {
  1: required string namespace_name,
  2: required string topic,
  3: optional bool enqueue_paused,
  4: optional bool dequeue_paused,
  5: optional string reason,
  6: optional double deliveries_per_second_max,
  7: optional i32 weight,
  /** `topic` is a prefix. Of several prefixes of a topic the longest one holds, as a whole. */
  8: optional bool is_prefix,
  /** The consumer group of the topic; "" or absent for its own. */
  9: optional string group,
  10: optional i32 attempts_max,
  11: optional i64 depth_max,
  12: optional TriState dead_letter_on_expiry,
  13: optional i64 backoff_ms,
  14: optional i64 backoff_ms_max,
  15: optional i32 in_flight_max,
  /**
   * True needs a topic, or topics of the prefix, without any items: INVALID_ARGUMENT says that a shard holds some. All
   * shards are asked, and enqueues of these topics get PAUSED meanwhile. False holds at once. Not of a group.
   */
  16: optional bool serial,
  17: optional OnDead on_dead,
  18: optional i32 aging_ms_per_priority,
  /** Another number needs a topic without any items, as `serial` does. Not of a group. */
  19: optional i32 key_buckets,
  /** It holds from the next delivery on. Not of a group. */
  20: optional i32 key_batch
}
/** A change of one policy, as in SetTopicPolicyRequest. */
struct TopicPolicyChange {
  1: optional string topic,
  2: optional bool is_prefix,
  3: optional bool enqueue_paused,
  4: optional bool dequeue_paused,
  5: optional string reason,
  6: optional double deliveries_per_second_max,
  7: optional i32 weight,
  /** The consumer group of the topic; "" or absent for its own. */
  8: optional string group,
  9: optional i32 attempts_max,
  10: optional i64 depth_max,
  11: optional TriState dead_letter_on_expiry,
  12: optional i64 backoff_ms,
  13: optional i64 backoff_ms_max,
  14: optional i32 in_flight_max,
  15: optional bool serial,
  16: optional OnDead on_dead,
  18: optional i32 key_buckets,
  19: optional i32 aging_ms_per_priority,
  20: optional i32 key_batch
}
/**
 * Makes up to 1,000 changes, one after the other, in one transaction. One that cannot be made has its error at its position
 * and changes nothing; the others are made.
 */
struct SetTopicPoliciesRequest { 1: required string namespace_name, 2: required list<TopicPolicyChange> changes }
struct GetTopicPolicyRequest {
  1: required string namespace_name,
  2: required string topic,
  3: optional bool is_prefix,
  /** The consumer group of the topic; "" or absent for its own. */
  4: optional string group
}
/**
 * Lists policies in the order of their names: those of topics that have one, and before them, if `with_prefixes` is true,
 * those of prefixes. Callers that do not know prefixes would take them for topics.
 */
struct ListTopicPoliciesRequest {
  1: required string namespace_name,
  /** Only topics and prefixes that begin so. */
  2: string prefix = "",
  3: i32 limit = 1000,
  4: string page_token = "",
  5: optional bool with_prefixes
}
struct ListTopicPoliciesResponse { 1: list<TopicPolicy> policies, 2: string next_page_token }

/**
 * A consumer group of a topic. It gets a copy of each item, with leases, attempts, dead letters, cap, weight and pauses of
 * its own. A topic has the group "" by itself, which is the topic as dequeues without a group see it.
 */
struct TopicGroup {
  1: string topic,
  2: string group,
  /** Its copies expire this long after they are due, if they would not earlier; 0 for the TTL of the item. */
  3: i64 ttl_ms,
  /** Its copies are ready by this later than those of other groups. */
  4: i64 delay_ms,
  5: i64 created_at_ms,
  /** True if it was deleted: it gets no copies, and those that it holds are being deleted. */
  6: bool is_deleted,
  /**
   * The job that copies the items that waited when the group was created: getJob shows its progress, and updateJob with
   * state FAILED ends it for good (both its end and its rate need MANAGE). "" for a group without it.
   */
  7: string copy_job,
  /** True while that job runs. */
  8: bool is_copying
}
/**
 * Declares a group. Each item that is enqueued after the response has a copy in it; items before are copied only with
 * from_queued. The same call can be repeated, and is to be after UNAVAILABLE, which names the shard whose host does not follow yet. PAUSED says
 * that a deleted group of that name still holds items. For the group "", which was deleted, it lets it get items again;
 * that one takes no settings.
 */
struct CreateGroupRequest {
  1: required string namespace_name,
  2: required string topic,
  3: required string group,
  4: i64 ttl_ms = 0,
  5: i64 delay_ms = 0,
  /**
   * True to copy each item of the topic that waits now, is delayed or under lease, and is still there when its turn
   * comes. Hosts do so in the background, by a job. Copies keep the time at which their item is due, and its expiry.
   */
  6: optional bool from_queued
}
/**
 * Deletes a group: no item that is enqueued after the response has a copy in it, and the copies that it holds are deleted
 * in the background, whatever their states. The group "" can be deleted too, while the topic has another one; its
 * topic is then read by its groups alone.
 */
struct DeleteGroupRequest { 1: required string namespace_name, 2: required string topic, 3: required string group }
struct DeleteGroupResponse {}
/** Lists the declared groups of the topics that begin with `prefix`, by topic and group, with the deleted ones. */
struct ListGroupsRequest {
  1: required string namespace_name,
  2: string prefix = "",
  3: i32 limit = 1000,
  4: string page_token = ""
}
struct ListGroupsResponse { 1: list<TopicGroup> groups, 2: string next_page_token }

enum ItemState { READY = 0, DELAYED = 1, LEASED = 2, DEAD = 3 }

/** A failed or released attempt of an item whose reason is known. */
struct ItemFailure {
  /** When the attempt ended. */
  1: i64 at_ms,
  /** The attempt of the delivery, 1 for the first. */
  2: i32 attempt,
  /** The reason that the nack gave, or "lease ended". */
  3: string reason
}

/** An item as it is stored, for operators. Reading it takes no lease. */
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
  /** The number of failed attempts so far. */
  10: i32 failed_attempts,
  11: DeliveryPolicy delivery,
  /** Set only while the item is LEASED. */
  12: optional i64 lease_expires_at_ms,
  /** Set only if the item is DEAD, like death_reason. */
  13: optional i64 died_at_ms,
  14: optional string death_reason,
  15: optional i64 lease_ms,
  16: optional string trace_context,
  /** The consumer group that has this copy of the item; absent for the topic's own. */
  17: optional string group,
  18: optional string ordering_key,
  /** The bucket of its ordering_key, which the item does not show then, if the topic has key_buckets: "17/64" of 64. */
  19: optional string key_bucket,
  20: optional string fairness_key,
  /** The place of a ready or leased item of a topic that ages, in units of 100 ms; absent for the priority. */
  21: optional i32 urgency,
  /** Its last failures, the newest first: up to 16 from getItem, and the newest one in pages and exports. */
  22: optional list<ItemFailure> errors,
  /**
   * Only while the item is LEASED: the consumer that has it, by its name or the address that it called from. After a
   * take-over of the shard it is "unknown (before the take-over of ...)" until an extension names the consumer again.
   */
  23: optional string leased_by,
  /** The start of the delivery, if it is known. */
  24: optional i64 leased_since_ms
}

/** Lists the ready and leased items of one topic, the most urgent first: those without a key, and behind them those of
    one fairness_key after the other, and then of one ordering_key after the other. */
struct PeekItemsRequest {
  1: required string namespace_name,
  2: required string topic,
  3: i32 limit = 100,
  4: string page_token = "",
  /** Only these shards, all of which the host must serve: UNAVAILABLE says that it does not. From hosts alone. */
  5: optional list<i32> shard_ids,
  /** The consumer group of the topic; "" or absent for its own. */
  6: optional string group,
  /** Only the items with this key. */
  7: optional string ordering_key,
  /** Only the items with this key, in place of ordering_key. */
  8: optional string fairness_key
}
struct GetItemRequest   { 1: required string namespace_name, 2: required string id }
struct StoredItemsResponse { 1: list<StoredItem> items, 2: string next_page_token }
/** Deletes items in any state. A later ack of their receipts gets STALE_LEASE. */
struct DeleteItemsRequest { 1: required string namespace_name, 2: required list<string> ids }
/**
 * Lists the consumers of a namespace: those that wait for items, those with items under lease, and those that have asked
 * for items in the last 10 minutes. One that waits for several topics, or has items of several, is there with each.
 */
struct ListConsumersRequest {
  1: required string namespace_name,
  /** Only what they wait for or have of this topic; "" for all topics. */
  2: string topic = "",
  /** Only consumers whose names begin with this. */
  3: string name_prefix = "",
  /** The maximum number of rows, 1 to 1,000. */
  4: i32 limit = 1000,
  /** The next_page_token of the previous page, or "" for the first page. */
  5: string page_token = "",
  /** If true, shards and hosts that do not respond are left out and named in `missing`, instead of failing the call. */
  6: optional bool partial,
  /** Only these shards, all of which the host must serve: UNAVAILABLE says that it does not. From hosts alone. */
  7: optional list<i32> shard_ids,
  /** Only of this consumer group, "" for the topics' own; absent for all. */
  8: optional string group
}
/** A consumer with one topic or prefix. */
struct ConsumerRow {
  1: string name,
  /** The address from which it has called last, as the host saw it that it is connected to; "" if nobody knows. */
  2: string caller,
  /** "" of a consumer that neither waits nor has items, and with prefix. */
  3: string topic,
  /** Its dequeues that wait for the topic. */
  4: i32 waiting_calls,
  /** The items of the topic that it has under lease. */
  5: i32 held,
  /** The start of the oldest of these deliveries; 0 if there are none, or if it is unknown. */
  6: i64 held_since_ms,
  /** Its last dequeue, of any topic; 0 if unknown. */
  7: i64 last_dequeue_at_ms,
  /** The hosts that it has called in the last 10 minutes, up to 16; empty for callers without WATCH. */
  8: list<string> hosts,
  /** If it waits for any topics that begin with this; then topic is "". */
  9: optional string prefix,
  /** The consumer group of the topic or prefix; absent for its own. */
  10: optional string group
}
struct ListConsumersResponse {
  /** By name, topic, group and prefix. */
  1: list<ConsumerRow> consumers,
  /** "" on the last page. */
  2: string next_page_token,
  /** With partial: whose consumers are not listed, each in words. */
  3: optional list<string> missing
}
/**
 * Ends the leases of a consumer as releases: the items are ready again, without a failed attempt, and late acks get
 * STALE_LEASE. It does not keep a living consumer from taking items again: pause the topic first. It can be repeated.
 */
struct ReleaseLeasesRequest {
  1: required string namespace_name,
  /** The exact name, as listConsumers has it. */
  2: required string consumer,
  /** Only the items of this topic; "" for all topics. */
  3: string topic = "",
  /** Also items that are delivered at most once, which a release deletes. */
  4: bool at_most_once = false,
  /** Only these shards, all of which the host must serve: UNAVAILABLE says that it does not. From hosts alone. */
  5: optional list<i32> shard_ids,
  /** Only of this consumer group, "" for the topics' own; absent for all. */
  6: optional string group
}
struct ReleaseLeasesResponse {
  1: i64 released,
  /** The items that are delivered at most once, which the consumer keeps. */
  2: i64 left_at_most_once
}
/**
 * Makes dedup_ids free at once: the next enqueue with one of these makes an item, whether the id is known from the dedup
 * window or an item holds it until it ends. Items stay as they are. NOT_FOUND says that an id was free already.
 */
struct ForgetDedupIdsRequest {
  1: required string namespace_name,
  /** Up to 1,000. */
  2: required list<string> dedup_ids,
  /** The topic of the ids, if it is serial, or if the dedup_scope of the namespace is TOPIC. Otherwise it is refused. */
  3: optional string topic,
  /** The key of the items, if they have one, which needs the topic: an id is known in its key alone. */
  4: optional string ordering_key
}

struct ListDeadLettersRequest {
  1: required string namespace_name,
  2: required string topic,
  3: i32 limit = 100,
  4: string page_token = "",
  /** Only these shards, all of which the host must serve: UNAVAILABLE says that it does not. From hosts alone. */
  5: optional list<i32> shard_ids,
  /** The consumer group of the topic; "" or absent for its own. */
  6: optional string group,
  /** Only the items with this key. Without it, those without a key come first, and those of one key after the other. */
  7: optional string ordering_key,
  /** Only the items with this key, in place of ordering_key. */
  8: optional string fairness_key
}
/** Makes dead letters ready again, with no failed attempts and a new TTL: those with these ids, or the oldest of the topic,
    up to limit. Without ids it passes over items that are delivered at most once, which it cannot redrive. */
struct RedriveDeadLettersRequest {
  1: required string namespace_name,
  2: required string topic,
  3: optional list<string> ids,
  4: i32 limit = 1000,
  /** Without ids: go on behind an earlier call, as its next_page_token says. */
  5: optional string page_token,
  /** The consumer group of the topic; "" or absent for its own. */
  6: optional string group,
  /** Only items with this key. */
  7: optional string ordering_key,
  /** Only the items with this key, in place of ordering_key. */
  8: optional string fairness_key
}
/** Deletes dead letters: those with these ids, or the oldest of the topic, up to limit. */
struct PurgeDeadLettersRequest {
  1: required string namespace_name,
  2: required string topic,
  3: optional list<string> ids,
  4: i32 limit = 1000,
  /** Without ids: go on behind an earlier call, as its next_page_token says. */
  5: optional string page_token,
  /** The consumer group of the topic; "" or absent for its own. */
  6: optional string group,
  /** Only items with this key. */
  7: optional string ordering_key,
  /** Only the items with this key, in place of ordering_key. */
  8: optional string fairness_key
}
struct DeadLettersResponse {
  /** How many were redriven or purged. */
  1: i64 count,
  /** By position in the ids of the request, or else in those of this response. */
  2: map<i32, ItemError> errors,
  /** The ids that the call chose, where the request named none. */
  3: optional list<string> ids,
  /** Empty when the topic has no more dead letters. Unless it is empty there may be more, also where count is 0. */
  4: optional string next_page_token
}

/** PAUSED and CANCELLED are of bulk jobs alone. */
enum JobState { RUNNING = 0, SUCCEEDED = 1, FAILED = 2, PAUSED = 3, CANCELLED = 4 }

/** Items by what is stored of them: an item matches if it has all that is given. Texts and bytes match anywhere in theirs. */
struct ItemFilter {
  /** Up to 100 topics, with all their keys; not beside topic_prefix. */
  1: optional list<string> topics,
  2: optional string topic_prefix,
  /** Any of these. Absent means DEAD for REDRIVE, and all but LEASED for other actions. */
  3: optional list<ItemState> states,
  /** From this time on, in ms since the epoch. */
  4: optional i64 enqueued_after_ms,
  /** Before this time. */
  5: optional i64 enqueued_before_ms,
  /** Dead letters that died from this time on. */
  6: optional i64 died_after_ms,
  7: optional i64 died_before_ms,
  8: optional i32 priority_min,
  9: optional i32 priority_max,
  /** Failed attempts, which is what StoredItem shows. */
  10: optional i32 attempts_min,
  11: optional i32 attempts_max,
  /** In the reason of a dead letter, or in the reason of a failure that the item keeps. Needs READ. Up to 500 bytes. */
  12: optional string error_contains,
  /** Needs READ, like payload_contains. Up to 1,024 bytes. */
  13: optional binary metadata_contains,
  /** Reads the payloads of all items that match otherwise, which takes longer. Up to 1,024 bytes. */
  14: optional binary payload_contains,
  /** Delayed items that become ready at exactly this time. */
  16: optional i64 deliver_after_ms,
  /** Up to 1,000 ids. */
  17: optional list<string> ids
}

/** UNDO buries again what a job has redriven with a deliver_after_ms that is not over. */
enum BulkAction { COUNT = 0, DELETE = 1, REDRIVE = 2, UNDO = 7 }

/** What a bulk job does to all items that match. */
struct BulkWork {
  1: ItemFilter filter,
  2: BulkAction action,
  /** REDRIVE only: the items are delayed until this time, and UNDO is possible up to it. The job can move it by some ms. */
  3: optional i64 deliver_after_ms,
  /** The most items that may be changed; the job pauses if more match. Absent or 0 for no limit. */
  6: optional i64 items_max,
  /** UNDO only: the id of the job. The filter is that job's then, and stays empty here. */
  9: optional string undoes,
  /** DELETE only: must be true where the filter has no condition at all, and is refused where it has one. */
  10: optional bool all_items
}

/** The work of a bulk job, as the owners of the shards report it every 2 s. */
struct BulkState {
  1: BulkWork work,
  /** Items of the wanted topics and states that were looked at, and how many of these the shards had when they began. */
  2: i64 examined,
  /** Items that were taken up: done, skipped, failed and, for a moment, in work. */
  3: i64 matched,
  /** Items that were changed; 0 for COUNT. */
  4: i64 done,
  /** Items that matched and could not be changed, such as at-most-once items, or that had changed meanwhile. */
  5: i64 skipped,
  6: i64 failed,
  /** Why the job has paused by itself, or why a shard does not go on, or some of its items wait. */
  7: string error,
  8: i64 of_items,
  /** Shards whose part waits, because nobody serves them. */
  9: list<i32> waiting_shards,
  /** True if a host died in the midst: items that it had possibly changed count as done if they do not match any more. */
  10: bool is_recounted,
  /** Shards that have ended their part, of this many. */
  13: i32 shards_done,
  14: i32 shards,
  /** True if the filter has texts that are left out here, because the caller has no READ. */
  15: bool hides_texts
}

/** The record of a load that comes in many calls, possibly from many clients and to many hosts. */
struct Job {
  /** 1 to 128 of A-Z a-z 0-9 . _ - */
  1: string id,
  2: string namespace_name,
  3: i64 created_at_ms,
  /** The time of the last update or count. The record is kept for 30 days after it. */
  4: i64 updated_at_ms,
  /** What the client of the job says. Hosts change it only for bulk jobs and copies for groups, which they do. */
  5: JobState state,
  /** What all calls of the job together may enqueue, whatever hosts they go to; 0 for no limit. */
  6: i64 items_per_second_max,
  /** Items that were made. Hosts count them as calls with its job_id are done, and write the counts every 2 s. */
  7: i64 items_count,
  /** Positions that got the id of an item that was enqueued before. */
  8: i64 duplicates_count,
  /** Positions that were refused and will be again, such as those with a payload that is too large. */
  9: i64 rejected_count,
  /** What the client of the job tells at its end. */
  10: i64 rows_count,
  /** A text for people, up to 4 KiB of UTF-8. */
  11: string detail,
  /** Only of a bulk job, and not from listJobs. */
  12: optional BulkState bulk
}

/**
 * Makes a record. ALREADY_EXISTS says that the namespace has one of that id. Where there are too many records, the one
 * that ended first is deleted; INVALID_ARGUMENT says that all of them run.
 */
struct CreateJobRequest { 1: required string namespace_name, 2: required string id, 3: i64 items_per_second_max = 0, 4: string detail = "" }
/**
 * Makes a job that hosts do: they count, delete or redrive all stored items that match, each shard by its owner, beside
 * all other work. Items that are stored when a shard begins are looked at once. OVERLOADED says that too many bulk jobs
 * run: 10 in a namespace, 100 in a cluster.
 */
struct CreateBulkJobRequest {
  1: required string namespace_name,
  /**
   * `bulk-` and 20 hex digits, by chance. A repeat of a call returns the job that was made; ALREADY_EXISTS says that the job
   * of this id has another definition.
   */
  2: required string id,
  /** Items of all hosts together; 0 for 500 in REDRIVE, and for 2,000 a shard in other actions but COUNT. */
  3: i64 items_per_second_max = 0,
  4: string detail = "",
  5: required BulkWork bulk
}
/**
 * Changes what is given. A new rate holds on every host within 2 s. Calls may name a job whose state is not RUNNING. A
 * bulk job can be set to PAUSED, RUNNING again, and CANCELLED, which hosts follow within 2 s, and needs ALTER for it.
 */
struct UpdateJobRequest {
  1: required string namespace_name,
  2: required string id,
  3: optional JobState state,
  4: optional i64 items_per_second_max,
  5: optional i64 rows_count,
  6: optional string detail
}
struct GetJobRequest    { 1: required string namespace_name, 2: required string id }
/** Lists the jobs of a namespace, the newest first. */
struct ListJobsRequest  { 1: required string namespace_name, 2: i32 limit = 100, 3: string page_token = "" }
struct ListJobsResponse { 1: list<Job> jobs, 2: string next_page_token }

/** The number by which topics are ordered, the largest first: a rate over 1 minute, or the ready items. */
enum RateOrder {
  ENQUEUED = 0,
  DELIVERED = 1,
  ENDED = 2,
  FAILED = 3,
  READY = 4
}
struct GetRatesRequest {
  1: required string namespace_name,
  /** Only these topics, up to 1,000. Each has a row, of zeros if it has not moved. */
  2: optional list<string> topics,
  /** Only topics whose names begin with this. Not beside `topics`. */
  3: string topic_prefix = "",
  4: RateOrder order = RateOrder.ENQUEUED,
  /**
   * The maximum number of topics, up to 1,000, where `topics` names none. Each host chooses its own first ones, up
   * to a hundred more, so that a topic that is among those of no host is left out.
   */
  5: i32 limit = 100,
  /** If true, rows have their series. It needs `topics`, up to 50, or of_namespaces. */
  6: optional bool with_series,
  /** If true, the response has one row without a topic: the whole namespace. Neither `topics` nor topic_prefix, then. */
  7: optional bool of_namespaces,
  /** If true, shards and hosts that do not respond are left out and named in `missing`, instead of failing the call. */
  8: optional bool partial,
  /** Only the host that serves these shards, all of which it must serve. From hosts alone. */
  9: optional list<i32> shard_ids,
  /** The consumer group of `topics`; absent for the topics' own. */
  10: optional string group
}
struct RatesResponse {
  1: list<TopicRates> topics,
  /** With with_series: the begin of the first slot, in ms since the epoch. All series have slots one behind the other. */
  2: i64 first_slot_ms,
  3: i32 slot_ms,
  /** With partial: whose items are not counted, each in words. */
  4: optional list<string> missing
}

struct GetHistoryRequest {
  1: required string namespace_name,
  /** Up to 10 topics, each with rows of its own, which have the items of its keys; none: the namespace as a whole. */
  2: optional list<string> topics,
  3: required i64 from_ms,
  /** At most 31 days behind from_ms. */
  4: required i64 to_ms,
  /** The length of a row in time, up to 1,440; 0: as short as 500 rows have room for, with all topics together. */
  5: i32 step_minutes = 0,
  /** If true, shards and hosts that do not respond are left out and named in `missing`, instead of failing the call. */
  6: optional bool partial,
  /** Only the host that serves these shards. From hosts alone. */
  7: optional list<i32> shard_ids,
  /** The consumer group of `topics`; absent for the topics' own. */
  8: optional string group
}
/** The events of a step of time, of one topic or of the namespace (topic ""). A step without events has no row. */
struct HistoryRow {
  1: string topic,
  /** The begin of the step. */
  2: i64 at_ms,
  3: i64 enqueued,
  4: i64 acked,
  /** Failed attempts, after which the item is delivered again. */
  5: i64 nacked,
  6: i64 released,
  7: i64 lease_ended,
  8: i64 dead,
  9: i64 expired,
  10: i64 deleted,
  11: i64 at_most_once,
  /** Items that the quota has refused; only of a namespace. */
  12: i64 rate_limited,
  /** First deliveries by their wait since the items were ready, by bounds_ms, and one number for longer waits; or empty. */
  13: list<i64> wait_buckets,
  14: i64 wait_ms_sum,
  /** Ended deliveries by their time, likewise. */
  15: list<i64> processing_buckets,
  16: i64 processing_ms_sum
}
struct HistoryResponse {
  /** By topic and time. */
  1: list<HistoryRow> rows,
  2: i32 step_minutes,
  /** Rows before this are not complete: a host reads its newest files first, for 3 s or 64 MiB at most. */
  3: i64 complete_from_ms,
  /** The upper bounds of the buckets. */
  4: list<i64> bounds_ms,
  /** With partial: whose events are not counted, each in words. */
  5: optional list<string> missing
}

/** A call that changed something or showed payloads, or that was refused; or several of the same kind. */
struct AuditRecord {
  /**
   * The time of the record, in ms since the epoch, by the clock of the host that was asked: the end of the call, or the
   * end of the time whose calls the record sums up. Rows come a few seconds late: continue from 10 s before the newest.
   */
  1: i64 at_ms,
  /** The process that was asked, and its own count of records. */
  2: string host,
  3: i64 number,
  4: string request_id,
  /** Who called, and by which token or certificate that was known. */
  5: string principal,
  6: string credential,
  7: string address,
  8: string verb,
  9: string namespace_name,
  /** What the call named in its namespace or in the cluster, as `name=value`. */
  10: string subject,
  /**
   * What it set, as `name=value` or `name=old -> new`. Never a payload or a token. A long one is several records with the
   * same request_id, which begin with `part 2 of 3: `. A sum begins with the times of its first and its last call.
   */
  11: string changes,
  /** OK, or the code of the error. */
  12: string outcome,
  13: i64 took_ms,
  /** How many calls the record sums up; 0 for a further part of one. */
  14: i64 count
}
/**
 * Lists the audit, the oldest records first. A page has fewer records than there are if a filter leaves out others, and
 * can have none: the last page is the one with an empty next_page_token.
 */
struct ListAuditRequest {
  1: optional i64 since_ms,
  2: optional i64 until_ms,
  3: optional string principal,
  4: optional string namespace_name,
  5: optional string verb,
  6: i32 limit = 100,
  7: string page_token = ""
}
struct ListAuditResponse { 1: list<AuditRecord> records, 2: string next_page_token }
/** Some of the stored items of one shard: those with keys after from_key, up to to_key. It stays valid, on any host. */
struct ExportSplit {
  1: i32 shard_id,
  2: i64 from_key,
  3: i64 to_key,
  /** About how many items of the namespace there are in it. */
  4: i64 items_estimate
}
struct PlanExportRequest {
  1: required string namespace_name,
  /** The maximum number of splits of one shard, 1 to 64. Items are spread evenly over them, as far as a sample tells. */
  2: i32 splits_per_shard = 1,
  /** Only these shards, all of which the host must serve: UNAVAILABLE says that it does not. From hosts alone. */
  3: optional list<i32> shard_ids,
  /** A plan without shards and hosts that do not respond will do: the response names them. Otherwise UNAVAILABLE. */
  4: optional bool partial
}
struct PlanExportResponse {
  /** They hold every item that is stored now, and none that is enqueued later; empty if the namespace has no items. */
  1: list<ExportSplit> splits,
  2: i64 as_of_ms,
  /** In words, the shards and hosts that do not respond. Empty unless the request has `partial`. */
  3: optional list<string> missing
}
/**
 * Reads a page of a split, whatever the states of the items, in the order of their keys. It changes nothing. An item
 * that is there from the plan to the last page comes exactly once; what leaves the queue meanwhile may be missing. State
 * and contents are those at the time of the page.
 */
struct ExportItemsRequest {
  1: required string namespace_name,
  /** From a plan. UNAVAILABLE says that its shard is not served by this host. */
  2: required ExportSplit split,
  /** The next_after_key of the previous page, or 0 for the first page. */
  3: i64 after_key = 0,
  /** The maximum number of items, 1 to 1,000. */
  4: i32 limit = 1000,
  /** Only items of these topics, up to 500; all if empty. */
  5: list<string> topics,
  /** Only items in these states; all if empty. */
  6: list<ItemState> states,
  /** If false, payloads are empty. */
  7: bool with_payload = true,
  /** If false, metadata is empty. */
  8: bool with_metadata = true,
  /** Only items of topics whose names begin with this; not together with topics. */
  9: optional string topic_prefix
}
struct ExportItemsResponse {
  /** May be empty although it is not the last page. */
  1: list<StoredItem> items,
  /** 0 on the last page. */
  2: i64 next_after_key
}

/** Whether a shard takes items. */
enum ShardUse {
  SERVING = 0,
  /** It takes no new items without dedup_ids; what it holds is served. */
  DRAINING = 1,
  /** Nobody serves it. */
  REMOVED = 2,
  /** Nobody serves it until it is unparked; its items wait, and calls that need it get UNAVAILABLE. */
  PARKED = 3
}
/** How a shard is served, as the hosts say themselves. */
enum ShardHealth {
  /** The host that took it last lives, and has not said in time whether it serves it. */
  UNKNOWN = 0,
  SERVED = 1,
  /** A host has it, whose circuit breaker for it is open. */
  SICK = 2,
  /** No host that lives serves it. */
  UNSERVED = 3
}
/** A shard of the cluster, as the meta database knows it, and what the hosts that live say of it. */
struct ClusterShard {
  1: i32 shard_id,
  /** The URL of its database without user and password; empty if only the configurations of hosts say it. */
  2: string place,
  3: ShardUse state,
  /** The tier of the hosts that serve it. */
  4: string tier,
  /** The name of the host that is to serve it while that host is there; empty for any. */
  5: string pinned_to,
  /** The name of the host that lives and serves it, also while it is sick; empty while none is known to. */
  6: string owner,
  /** Where the owner listens; empty if there is none, or it does not know it. */
  7: string owner_address,
  8: i64 epoch,
  /** The name of the host that is ready to take it from its owner; empty for none. */
  9: string moving_to,
  /** When place, state, tier or pinned_to was changed last. */
  10: i64 changed_at_ms,
  /** How many slots of dedup_ids lead to it. */
  11: optional i32 slots_count,
  /** What keeps a draining shard from being removed, as far as the asked host knows; only its owner counts its items. */
  12: optional string kept_by,
  /** The process that took it last, whatever became of that: its host's name, #, and its start. */
  13: optional string last_owner,
  14: optional ShardHealth health,
  /** Why it is not served or sick, or why that is not known. */
  15: optional string detail
}
struct ListShardsRequest {}
struct ListShardsResponse {
  /** All shards that there are or were, by id. */
  1: list<ClusterShard> shards
}
/** Lets the hosts of a tier serve one more shard. Its database must have the tables of this version. */
struct AddShardRequest {
  /** 0 to 65,535, and no id that a shard at another place ever had. */
  1: required i32 shard_id,
  /** The URL of its database without user and password, such as mysql://HOST:PORT/DATABASE. */
  2: required string place,
  3: string tier = ""
}
/** Changes what is given. All hosts act on it within about a second. */
struct UpdateShardRequest {
  1: required i32 shard_id,
  /** SERVING, DRAINING or PARKED. A parked shard is left by its owner within seconds; SERVING unparks it. */
  2: optional ShardUse state,
  /** The name of the host that is to serve it while that host is there; empty for any. INVALID_ARGUMENT for one that is
      there and serves another tier. */
  3: optional string pinned_to,
  4: optional string tier,
  /** Drain or park it also if it is the last shard of its tier that takes items: INVALID_ARGUMENT otherwise, since enqueues
      without dedup_ids would be refused from then on. */
  5: optional bool last,
  /**
   * The place of its database from now on, such as mysql://HOST:3306/DATABASE, of a parked shard whose last owner has left
   * it: UNAVAILABLE before. INVALID_ARGUMENT for a shard that is not parked, a place that the hosts do not allow, another
   * shard's database, one without an identity, and one that lacks transactions of the shard, unless allow_older.
   */
  6: optional string place,
  /** Take a database that lacks transactions, as one restored from a backup does; they are lost, and counted as lost. */
  7: optional bool allow_older
}
/**
 * Lets nobody serve the shard any more. Any host has its owner do it. INVALID_ARGUMENT if it is not draining, holds items
 * or has slots of dedup_ids. NOT_FOUND if there is no such shard or it was removed. UNAVAILABLE while no host serves it.
 */
struct RemoveShardRequest {
  1: required i32 shard_id
}
struct RemoveShardResponse {}

/**
 * Removes the gates of a slot, so that its present shard delivers the items of its serial topics although an earlier shard
 * still has older ones. For an earlier shard whose database is gone: if it comes back, its items are delivered after all,
 * out of order. NOT_FOUND if the slot has no gate. INVALID_ARGUMENT without force, with the gates in its message.
 */
struct UngateSlotRequest {
  /** 0 to 1,023. */
  1: required i32 slot,
  /** Do it, although the earlier shard can still have older items. */
  2: optional bool force
}
struct UngateSlotResponse {}

/** What a host that lives does, as it says itself. */
enum HostState {
  /** It has not said so in time, or cannot be asked: detail says why. */
  SILENT = 0,
  SERVING = 1,
  /** It serves no shard, and takes those that it is given. */
  STANDBY = 2,
  /** It is about to end, and hands its shards on. */
  LEAVING = 3,
  /** It has not opened its port yet. */
  STARTING = 4
}
/** A host that lives, as far as the asked one knows. */
struct ClusterHost {
  1: string name,
  /** The process: the name of the host, #, and its start. */
  2: string host_id,
  /** Where it listens; empty if it tells no address. */
  3: string address,
  /** The tier of the shards that it serves. */
  4: string tier,
  /** Empty while it is SILENT. */
  5: string version,
  6: i64 started_at_ms,
  /** How long ago the asked host saw a heartbeat of it. One without any for 2.5 s is dead, and is not listed. */
  7: i64 beat_age_ms,
  8: bool is_leaving,
  9: HostState state,
  /** Those that it serves, by id, sick ones included. */
  10: list<i32> shards,
  11: list<i32> sick_shards,
  12: string detail,
  /** Where other hosts call it; empty or not set if they use address. */
  13: optional string peer_address
}
/** Asks all hosts that live, for 2 s at most. */
struct ListHostsRequest {}
struct ListHostsResponse {
  /** By name and process. */
  1: list<ClusterHost> hosts
}

struct HostStatusRequest {}
struct ShardStatus { 1: i32 shard_id, 2: string state /* owned, sick (its circuit breaker is open) or lost (not owned now); detail says why */, 3: i64 epoch, 4: i64 items, 5: i64 open_leases, 6: string detail }
struct HostStatus { 1: string host, 2: string version, 3: i64 started_at_ms, 4: list<ShardStatus> shards, 5: bool draining, 6: optional string peer_address /* Where other hosts call it; empty or not set if they use the port for clients */ }

service FoqsAdmin {
  Namespace createNamespace(1: CreateNamespaceRequest request) throws (1: FoqsError error)
  Namespace updateNamespace(1: UpdateNamespaceRequest request) throws (1: FoqsError error)
  Namespace getNamespace(1: GetNamespaceRequest request) throws (1: FoqsError error)
  ListNamespacesResponse listNamespaces(1: ListNamespacesRequest request) throws (1: FoqsError error)
  DeleteNamespaceResponse deleteNamespace(1: DeleteNamespaceRequest request) throws (1: FoqsError error)
  Namespace recoverNamespace(1: RecoverNamespaceRequest request) throws (1: FoqsError error)
  TopicPolicy setTopicPolicy(1: SetTopicPolicyRequest request) throws (1: FoqsError error)
  BatchResponse setTopicPolicies(1: SetTopicPoliciesRequest request) throws (1: FoqsError error)
  TopicPolicy getTopicPolicy(1: GetTopicPolicyRequest request) throws (1: FoqsError error)
  ListTopicPoliciesResponse listTopicPolicies(1: ListTopicPoliciesRequest request) throws (1: FoqsError error)
  TopicGroup createGroup(1: CreateGroupRequest request) throws (1: FoqsError error)
  DeleteGroupResponse deleteGroup(1: DeleteGroupRequest request) throws (1: FoqsError error)
  ListGroupsResponse listGroups(1: ListGroupsRequest request) throws (1: FoqsError error)
  StoredItemsResponse peekItems(1: PeekItemsRequest request) throws (1: FoqsError error)
  StoredItem getItem(1: GetItemRequest request) throws (1: FoqsError error)
  BatchResponse deleteItems(1: DeleteItemsRequest request) throws (1: FoqsError error)
  BatchResponse forgetDedupIds(1: ForgetDedupIdsRequest request) throws (1: FoqsError error)
  ListConsumersResponse listConsumers(1: ListConsumersRequest request) throws (1: FoqsError error)
  ReleaseLeasesResponse releaseLeases(1: ReleaseLeasesRequest request) throws (1: FoqsError error)
  ExplainResponse explain(1: ExplainRequest request) throws (1: FoqsError error)
  StoredItemsResponse listDeadLetters(1: ListDeadLettersRequest request) throws (1: FoqsError error)
  DeadLettersResponse redriveDeadLetters(1: RedriveDeadLettersRequest request) throws (1: FoqsError error)
  DeadLettersResponse purgeDeadLetters(1: PurgeDeadLettersRequest request) throws (1: FoqsError error)
  Job createJob(1: CreateJobRequest request) throws (1: FoqsError error)
  Job createBulkJob(1: CreateBulkJobRequest request) throws (1: FoqsError error)
  Job updateJob(1: UpdateJobRequest request) throws (1: FoqsError error)
  Job getJob(1: GetJobRequest request) throws (1: FoqsError error)
  ListJobsResponse listJobs(1: ListJobsRequest request) throws (1: FoqsError error)
  RatesResponse getRates(1: GetRatesRequest request) throws (1: FoqsError error)
  /**
   * Counts from the event logs of the hosts that serve shards now. INVALID_ARGUMENT says that one has none. The last two
   * minutes are possibly not written yet. Nothing is counted that was before the minute in which the namespace was created.
   */
  HistoryResponse getHistory(1: GetHistoryRequest request) throws (1: FoqsError error)
  PlanExportResponse planExport(1: PlanExportRequest request) throws (1: FoqsError error)
  ExportItemsResponse exportItems(1: ExportItemsRequest request) throws (1: FoqsError error)
  ListShardsResponse listShards(1: ListShardsRequest request) throws (1: FoqsError error)
  ClusterShard addShard(1: AddShardRequest request) throws (1: FoqsError error)
  ClusterShard updateShard(1: UpdateShardRequest request) throws (1: FoqsError error)
  RemoveShardResponse removeShard(1: RemoveShardRequest request) throws (1: FoqsError error)
  UngateSlotResponse ungateSlot(1: UngateSlotRequest request) throws (1: FoqsError error)
  ListHostsResponse listHosts(1: ListHostsRequest request) throws (1: FoqsError error)
  HostStatus getHostStatus(1: HostStatusRequest request) throws (1: FoqsError error)
  /** The same as in Foqs. */
  Identity authenticate(1: AuthenticateRequest request) throws (1: FoqsError error)
  /** The same as in Foqs. */
  Identity whoAmI(1: WhoAmIRequest request) throws (1: FoqsError error)
}

/* ---- Who may call what, on the same port. All of it needs role admin once access is enforced. ---- */

/** What hosts do with a call that the grants of its caller do not permit. */
enum AccessMode {
  /** They do not look: everybody may do everything. */
  OPEN = 0,
  /** They count and log the refusal, and do the call. */
  PERMISSIVE = 1,
  ENFORCED = 2
}
/** A name by which a verified client certificate proves its principal. */
struct AccessCertificate {
  /** The exact URI or DNS name, which is among the subject alternative names of the certificate. */
  1: string name,
  2: string principal,
  3: string label,
  4: i64 created_at_ms,
  /** The principal that added it. */
  5: string created_by
}
/** Whoever can call: a program, a team or a person. */
struct AccessPrincipal {
  1: string name,
  /** If false, its credentials prove nothing. */
  2: bool enabled,
  3: list<AccessGrant> grants,
  4: i64 created_at_ms,
  5: i32 tokens_count,
  6: list<AccessCertificate> certificates
}
/** A token without its secret, which only its holder has. */
struct AccessToken {
  1: string id,
  2: string principal,
  3: string label,
  4: i64 created_at_ms,
  /** The principal that had it made. */
  5: string created_by,
  /** 0 if it does not expire. */
  6: i64 expires_at_ms,
  /** When it was used last, to the hour; 0 if never. */
  7: i64 used_at_ms
}
/** Refusals of one verb to one caller in one namespace. */
struct RefusedCalls {
  1: string who,
  2: string verb,
  /** Empty for a verb of the cluster. */
  3: string namespace_name,
  4: i64 times_count,
  5: i64 last_at_ms
}

struct CreatePrincipalRequest {
  /** 1 to 64 of a-z 0-9 . _ -; nobody and everybody are no names of principals. */
  1: required string name,
  /** At most 100, those for the same namespaces joined. Roles of the cluster are granted for all namespaces only. */
  2: list<AccessGrant> grants = [],
  3: bool enabled = true
}
/** Changes what is given. Hosts act on it within 2 s. */
struct UpdatePrincipalRequest {
  1: required string name,
  2: optional bool enabled,
  /** Replaces all grants. Not together with added and removed. */
  3: optional list<AccessGrant> grants,
  /** Grants to make, in the place of those for the same namespaces. */
  4: list<AccessGrant> added = [],
  /** The namespaces of grants to end, as they were granted. */
  5: list<string> removed = []
}
/** Its grants, tokens and certificates go with it. */
struct DeletePrincipalRequest { 1: required string name }
struct DeletePrincipalResponse {}
struct ListPrincipalsRequest {
  1: string prefix = "",
  /** 1 to 100. */
  2: i32 limit = 100,
  /** Empty for the first page. */
  3: string page_token = ""
}
struct ListPrincipalsResponse {
  1: list<AccessPrincipal> principals,
  /** Empty on the last page. */
  2: string next_page_token
}
/** A principal has at most 8 tokens and certificates. */
struct CreateTokenRequest {
  1: required string principal,
  /** A text for people, up to 128 bytes. */
  2: string label = "",
  /** How long it lives; 0 for a token that does not expire. 90 days if it is not given. */
  3: optional i64 expires_in_ms
}
struct CreateTokenResponse {
  /** It is told this once, and stored nowhere. */
  1: string token,
  2: AccessToken info
}
/** Calls with it are refused within 2 s. */
struct RevokeTokenRequest { 1: required string id }
struct RevokeTokenResponse {}
struct ListTokensRequest {
  /** Empty for the tokens of all. */
  1: string principal = "",
  /** 1 to 1,000. */
  2: i32 limit = 1000,
  /** Empty for the first page. */
  3: string page_token = ""
}
struct ListTokensResponse {
  1: list<AccessToken> tokens,
  /** Empty on the last page. */
  2: string next_page_token
}
struct AddCertificateRequest {
  1: required string principal,
  /** Exactly one of the URIs or DNS names among the subject alternative names of the certificate. */
  2: required string name,
  /** A text for people, up to 128 bytes. */
  3: string label = ""
}
/** Calls with it are refused within 2 s. */
struct RemoveCertificateRequest { 1: required string name }
struct RemoveCertificateResponse {}
/** ENFORCED is refused while no enabled principal with a valid credential has role admin. */
struct SetAccessModeRequest { 1: required AccessMode mode }
struct GetAccessRequest {}
struct AccessState {
  1: AccessMode mode,
  /** It is greater after each change. */
  2: i64 version,
  3: i64 changed_at_ms,
  4: i32 principals_count,
  5: i32 grants_count,
  6: i32 tokens_count,
  7: i32 certificates_count,
  /** The number of enabled principals with a valid credential that have role admin. */
  8: i32 administrators_count
}
struct ListRefusalsRequest {}
struct ListRefusalsResponse {
  /** What the asked host refused, or would have, the last first: up to 1,000 callers, verbs and namespaces. */
  1: list<RefusedCalls> refusals
}

service FoqsAccess {
  AccessPrincipal createPrincipal(1: CreatePrincipalRequest request) throws (1: FoqsError error)
  AccessPrincipal updatePrincipal(1: UpdatePrincipalRequest request) throws (1: FoqsError error)
  DeletePrincipalResponse deletePrincipal(1: DeletePrincipalRequest request) throws (1: FoqsError error)
  ListPrincipalsResponse listPrincipals(1: ListPrincipalsRequest request) throws (1: FoqsError error)
  CreateTokenResponse createToken(1: CreateTokenRequest request) throws (1: FoqsError error)
  RevokeTokenResponse revokeToken(1: RevokeTokenRequest request) throws (1: FoqsError error)
  ListTokensResponse listTokens(1: ListTokensRequest request) throws (1: FoqsError error)
  AccessCertificate addCertificate(1: AddCertificateRequest request) throws (1: FoqsError error)
  RemoveCertificateResponse removeCertificate(1: RemoveCertificateRequest request) throws (1: FoqsError error)
  AccessState setAccessMode(1: SetAccessModeRequest request) throws (1: FoqsError error)
  AccessState getAccess(1: GetAccessRequest request) throws (1: FoqsError error)
  ListRefusalsResponse listRefusals(1: ListRefusalsRequest request) throws (1: FoqsError error)
  ListAuditResponse listAudit(1: ListAuditRequest request) throws (1: FoqsError error)
}

/* ---- Between the hosts of one cluster, on the same port. Clients get PERMISSION_DENIED. ---- */

/**
 * The first call of a host on its connection to another one. Both know the secret of the cluster, which is in the meta
 * database and never on the wire. The response has nothing that is made of it: nonces are 32 random bytes.
 */
struct GreetRequest {
  /** The version of the proof, which is 2. */
  1: required i32 version,
  2: required string caller_id,
  /** The process that the caller means to call: it refuses to be taken for another one. */
  3: required string callee_id,
  4: required binary nonce
}
struct GreetResponse { 1: binary nonce }
/**
 * The second call, within 5 s: HMAC-SHA-256 over who calls whom and both nonces, with a key that is made of the secret
 * (docs/decisions/0042-proof-of-hosts.md). The response has the proof of the callee. Peers' calls come on this connection from then on.
 */
struct JoinRequest { 1: required binary proof }
struct JoinResponse { 1: binary proof }
/** How hosts showed each other who they are before greet and join: it is done with hosts of such builds alone. */
struct HelloRequest { 1: required string host_id, 2: required binary challenge }
struct HelloResponse { 1: string host_id, 2: binary proof, 3: binary challenge }
/** The second call after hello, with the proof over the challenge of its response. */
struct ProveRequest { 1: required string host_id, 2: required binary challenge, 3: required binary proof }
struct ProveResponse {}

/** What a host has ready of a topic; ready_count 0: nothing any more. */
struct TopicStock {
  1: i32 namespace_number,
  2: string topic,
  3: i64 ready_count,
  /** The most urgent priority, and when the first item of it was due. */
  4: i32 priority,
  5: i64 oldest_at_ms,
  /** Consumers have asked this host for the topic lately. */
  6: bool is_wanted,
  /** Of a topic that ages: the place of its first item, by which hosts compare; priority is that of this item then. */
  7: optional i32 urgency
}
/** Another host has ready items of a topic, for so many of which nobody else was told. */
struct TopicPointer {
  1: i32 namespace_number,
  2: string topic,
  3: string host_id,
  4: i64 ready_count,
  5: i32 priority,
  6: i64 oldest_at_ms,
  /** As in TopicStock. */
  7: optional i32 urgency
}
struct TopicWish { 1: i32 namespace_number, 2: string topic, 3: i64 count }
/** The caller has opened a shard, and owns it in this epoch. */
struct OpenedShard { 1: i32 shard_id, 2: i64 epoch }
/**
 * Tells the home of topics what the caller has of them. The response names hosts whose items should go first.
 * And tells any host of shards that the caller has opened.
 */
struct ReportRequest { 1: list<TopicStock> stocks, 2: optional list<OpenedShard> opened }
/** Tokens of a cap that the caller needs from its home. One that wants and holds none has no part in the cap any more. */
struct CapAsk {
  1: i32 namespace_number,
  /** Empty for the cap of the namespace. */
  2: string topic,
  /** The cap as the caller knows it, which the home takes while it knows none itself. */
  3: double per_second,
  4: i64 wanted_count,
  /** Tokens that the caller has. */
  5: i64 held_count,
  /** Tokens that it did not use in time. */
  6: i64 unused_count,
  /** That of what waits for tokens there; parts of a cap are by it. */
  7: i32 weight,
  /** Items wait for tokens. */
  8: bool is_short
}
/** Tokens that may be used after a time, and until one that counts from the question. */
struct CapGrant {
  1: i32 namespace_number,
  2: string topic,
  3: i64 granted_count,
  4: double after_ms,
  5: double ends_ms,
  /** What the host may make by itself after that, if it cannot reach the home. */
  6: double share_per_second
}
/** How many ready, delayed and leased items a host has of a topic; in a question the count is absent. */
struct TopicDepth { 1: i32 namespace_number, 2: string topic, 3: optional i64 items_count }
/**
 * Asks the home of topics who has ready items. If nobody has, the caller gets a hint when somebody does, for 2 s.
 * And asks the home of caps for tokens, and any host for the depths of topics.
 */
struct SeekRequest { 1: list<TopicWish> wishes, 2: optional list<CapAsk> asks, 3: optional list<TopicDepth> depths }
/** Without grants the home hands out no tokens: hosts then make an equal part of each cap. */
struct PointersResponse {
  1: list<TopicPointer> pointers,
  2: optional list<CapGrant> grants,
  3: optional list<TopicDepth> depths
}
struct HintRequest { 1: list<TopicPointer> pointers }
struct HintResponse {}

/** Asks a host for its facts about topics, by their hidden names, of those with a prefix, or about an item of its own. */
struct GetFactsRequest {
  1: required string namespace_name,
  2: optional list<string> names,
  3: optional string prefix,
  /** With prefix: of this group alone; absent for all. */
  4: optional string group,
  /** With prefix: the most topics, those with the most ready items first. */
  5: i32 limit = 10,
  6: optional string item_id,
  /** The place of an item: the items before it are counted. */
  7: optional i32 urgency,
  8: optional i64 due_at_ms,
  9: optional i64 key,
  10: optional i32 shard_id
}
/** A shard as its host has it. */
struct ShardFacts {
  1: i32 shard_id,
  /** owned, sick, leaving or lost. */
  2: string state,
  3: i64 epoch,
  4: string detail
}
/** A topic with its keys, as a host has it. Ready items are counted by the cause of their wait. */
struct HostTopic {
  1: string name,
  2: i64 ready,
  3: i64 delayed,
  4: i64 leased,
  5: i64 dead,
  6: i32 waiting_calls,
  7: i64 waited_ms,
  8: bool has_consumers,
  9: i64 cap_until_ms,
  10: bool is_cap_lost,
  11: i64 claimed,
  12: i64 prefetched,
  13: i64 sick,
  14: i64 no_room,
  15: i64 no_permit,
  16: i64 busy,
  17: i64 retrying,
  18: i64 held,
  19: i64 moving,
  20: i64 uncounted,
  21: i64 unread,
  22: i64 no_memory,
  23: i64 free,
  24: i64 busy_until_ms,
  25: string busy_by,
  26: i64 due_at_ms,
  27: i64 before,
  28: bool before_is_exact,
  29: i32 ordering_keys,
  30: i64 astray,
  31: bool waits_for_token,
  32: bool waits_for_namespace,
  33: i64 free_ms,
  34: i64 unread_idle,
  35: i64 cap_late_ms,
  /** In 1,000 seconds, at the speed of the last minute. */
  36: i64 delivered_per_1000s,
  37: i64 ended_per_1000s,
  38: i64 failed_per_1000s
}
struct ItemFacts {
  1: string id,
  2: string topic,
  3: i32 state,
  4: i32 urgency,
  5: i64 due_at_ms,
  6: i64 key,
  7: i32 shard_id,
  8: i64 expires_at_ms,
  9: i64 until_ms,
  10: i64 since_ms,
  11: string holder,
  12: string detail,
  13: string error,
  14: i32 failed_attempts
}
struct HostFacts {
  1: i64 now_ms,
  2: list<ShardFacts> shards,
  3: list<HostTopic> topics,
  4: i64 topics_count,
  /** Of all topics with the prefix; its name is empty. */
  5: optional HostTopic all_topics,
  6: optional ItemFacts item,
  7: string item_problem
}

service FoqsPeer {
  HostFacts getFacts(1: GetFactsRequest request) throws (1: FoqsError error)
  GreetResponse greet(1: GreetRequest request) throws (1: FoqsError error)
  JoinResponse join(1: JoinRequest request) throws (1: FoqsError error)
  HelloResponse hello(1: HelloRequest request) throws (1: FoqsError error)
  ProveResponse prove(1: ProveRequest request) throws (1: FoqsError error)
  PointersResponse report(1: ReportRequest request) throws (1: FoqsError error)
  PointersResponse seek(1: SeekRequest request) throws (1: FoqsError error)
  HintResponse hint(1: HintRequest request) throws (1: FoqsError error)
}
