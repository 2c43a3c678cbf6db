"""The bounds that callers, operators and reviewers of memory and time need to know, and how they depend on each other.

All hosts of a cluster must agree on the first section; the second one can differ by host. The tuning of one mechanism
(periods, chunks, ratios, thresholds) stands at the top of its module, such as foqs.shard.mysql_server.
Namespace limits are defaults that an operator can change within the hard bounds given here.
Source of most figures: the FOQS post (payload 10 KB) and design measurements in docs/decisions/.
"""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB
SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
NEVER_MS = 1 << 62

# --- cluster ---
# Names and numbers.
TOPIC_BYTES_MAX = 255
"""The longest name of a topic, in bytes of UTF-8."""
NAMESPACE_NAME_CHARS_MAX = 64
"""The longest name of a namespace."""
NAMESPACE_NUMBER_MAX = (1 << 32) - 1
"""The largest number of a namespace that the columns hold. Numbers of deleted namespaces are not reused."""
NAMESPACES_MAX = 20_000
"""Namespaces of a cluster. Every host keeps them all in memory and reads them every HEARTBEAT_MS."""
TOPIC_NUMBER_MAX = (1 << 31) - 1
"""The largest number of a topic that the columns hold. Numbers of forgotten topics are not reused."""
SHARD_ID_MAX = 65_535
"""The largest id of a shard."""
KEY_MAX = (1 << 63) - 1
"""The largest key of an item that an export can name. Keys grow from take-over to take-over, 2^40 at a time."""
HOSTS_MAX = 1_000
"""Hosts with a heartbeat in the meta database within the last minute. With more, no host can detect dead ones."""
JOB_ID_CHARS_MAX = 128
"""The longest id of a job."""
JOB_DETAIL_BYTES_MAX = 4 * KIB
"""The longest detail of a job record, in bytes of UTF-8."""
JOB_ITEMS_PER_SECOND_MAX = 100_000_000
"""The highest rate that a job can have."""
JOBS_PER_NAMESPACE_MAX = 1_000
"""Job records of one namespace. Beyond it, a new record replaces the one that ended first, or is refused if all run."""
JOBS_MAX = 20_000
"""Job records of all namespaces together, with the same rule."""
JOB_KEPT_MS = 30 * DAY_MS
"""How long a job record is kept after its last update."""
CENSUSES_MAX = 100
"""Namespaces of a cluster that are being created or deleted. Beyond it, creations and deletions get OVERLOADED."""

# One message and one call.
FRAME_BYTES_MAX = 16 * MIB
"""The largest request or response on the wire. A connection that announces a larger frame is closed."""
FRAME_ELEMENTS_MAX = 40_000
"""Container elements and struct fields in one message."""
FRAME_FIELDS_PER_STRUCT_MAX = 1_000
"""Fields in one struct."""
FRAME_DEPTH_MAX = 16
"""Nesting of structs and containers."""
METHOD_NAME_BYTES_MAX = 64
"""The longest name of a method."""
BATCH_ITEMS_MAX = 1_000
"""Items, receipts or ids in one call."""
DEQUEUE_TOPICS_MAX = 1_000
"""Topics in one dequeue."""
DEQUEUE_ITEMS_MAX = 1_000
"""Items in one response to a dequeue, even if the counts of its topics add up to more."""
DEQUEUE_ANSWER_BYTES_MAX = 12 * MIB
"""Payload and metadata in one response to a dequeue, which can exceed this by one item."""
PAGE_ITEMS_MAX = 1_000
"""Items, topics or namespaces in one page of a listing."""
PAGE_BYTES_MAX = 2 * MIB
"""Contents in one page of items. Each shard gives its share of it, and at least one item. The event loop hands a page
to the socket in one turn.
"""
EXPORT_SPLITS_MAX = 64
"""Splits of one shard in the plan of an export."""
EXPORT_TOPICS_MAX = 500
"""Topics in one page of an export."""
WAIT_MS_MAX = 30 * SECOND_MS
"""The longest wait_ms of a dequeue."""

# One item and one namespace.
PAYLOAD_BYTES_DEFAULT = 10 * KIB
"""The largest payload of an item in a namespace that sets no other bound."""
PAYLOAD_BYTES_MAX = 1 * MIB
"""The highest bound that a namespace can set for payloads."""
METADATA_BYTES_DEFAULT = 512
"""The largest metadata of an item in a namespace that sets no other bound."""
METADATA_BYTES_MAX = 64 * KIB - 1
"""The highest bound that a namespace can set for metadata."""
TRACE_CONTEXT_BYTES_MAX = 128
"""The longest trace context of an item."""
DEDUP_ID_BYTES_MAX = 255
"""The longest dedup id, in bytes of UTF-8."""
CONTENT_BYTES_MAX = PAYLOAD_BYTES_MAX + METADATA_BYTES_MAX + TRACE_CONTEXT_BYTES_MAX
"""Payload, metadata and trace context of one item together."""
LEASE_MS_MIN = 1 * SECOND_MS
"""The shortest lease that a caller can ask for."""
LEASE_MS_DEFAULT = 30 * SECOND_MS
"""The lease in a namespace that sets no other default, where neither the item nor the dequeue names one."""
LEASE_MS_MAX = 12 * HOUR_MS
"""The longest lease that a caller can ask for; a namespace can set a lower bound."""
DELAY_MS_MAX = 90 * DAY_MS
"""How far in the future an item or a nack can put the next delivery."""
TTL_MS_DEFAULT = 14 * DAY_MS
"""The time to live of an item that names none, in a namespace that sets no other default."""
TTL_MS_MAX = 90 * DAY_MS
"""The longest time to live."""
ATTEMPTS_DEFAULT = 16
"""Failed attempts after which an item becomes a dead letter, in a namespace that sets no other number."""
ATTEMPTS_MAX = 1_000
"""The highest number of attempts that a namespace can set."""
ERRORS_BYTES_DEFAULT = 1 * KIB
"""All that an item keeps of its last failures, in a namespace that sets no other bound. Older ones are forgotten."""
ERRORS_BYTES_MAX = 2 * KIB
"""The largest bound that a namespace can set, which is the width of the column."""
ENQUEUES_PER_MINUTE_DEFAULT = 6_000_000
"""Items that can be enqueued in any minute to a namespace that sets no other quota. Beyond it, enqueues get
RATE_LIMITED.
"""
ENQUEUES_PER_MINUTE_MAX = 1_000_000_000
"""The highest quota of a namespace."""
DEDUP_MS_DEFAULT = 7 * DAY_MS
"""How long a shard remembers a dedup id, in a namespace that sets no other time."""
DEDUP_MS_MIN = MINUTE_MS
"""The shortest time to remember dedup ids that a namespace can set."""
DEDUP_MS_MAX = 30 * DAY_MS
"""The longest time to remember dedup ids that a namespace can set."""
DEDUP_IDS_DEFAULT = 1_000_000
"""The number of latest dedup ids that a shard remembers of a namespace that sets no other number."""
DEDUP_IDS_MIN = 1_000
"""The smallest number of dedup ids that a namespace can set."""
DEDUP_IDS_MAX = 20_000_000
"""The largest number of dedup ids that a namespace can set."""
DELIVERIES_PER_SECOND_MIN = 0.001
"""The lowest cap on the deliveries of a topic or a namespace, in items a second."""
DELIVERIES_PER_SECOND_MAX = 100_000_000
"""The highest cap on the deliveries of a topic or a namespace, in items a second."""
TIER_CHARS_MAX = 64
"""The longest name of a tier."""
PAUSE_REASON_BYTES_MAX = 512
"""The longest reason of a pause, in bytes of UTF-8."""
TOPIC_WEIGHT_MAX = 100
"""The highest weight of a topic in dequeues from any topic."""
TOPIC_POLICIES_PER_NAMESPACE_MAX = 20_000
"""Topics of a namespace with a policy of their own."""
TOPIC_POLICIES_MAX = 100_000
"""Topics and prefixes of all namespaces with a policy of their own. Every host keeps all policies in memory."""
TOPIC_PREFIX_POLICIES_MAX = 1_000
"""Topic prefixes of a namespace with a policy."""
KEY_SPREAD_MAX = 64
"""The most slots over which a namespace can spread its dedup ids."""

# Behaviour of one host that others rely on.
AHEAD_LEASE_MS = 30 * SECOND_MS
"""The lease that a claim made ahead of consumers backs. A longer lease is committed before the delivery. After a crash,
a prefetched item is ready again AHEAD_LEASE_MS and CLAIM_SLACK_MS after its claim.
"""
CLAIM_SLACK_MS = 5 * SECOND_MS
"""A claim outlives the lease that it backs by this, so that a delivery needs no second write."""
HEARTBEAT_MS = 500
"""How often a host writes its heartbeat, and reads the others', the shards and the namespaces."""
HOST_DEAD_MS = 2_500
"""A host is dead when its heartbeat was seen not to change for this long and 8 round trips, in a watch without gaps."""
OWNER_SILENT_MS_MAX = 30 * SECOND_MS
"""A server ends the session of an owner that is silent for this long, so that a shard becomes free even where no host
is permitted to KILL the session.
"""
CENSUS_MS_MAX = 5 * SECOND_MS
"""How long the owners of all shards have to respond before a namespace is created or deleted."""
CENSUS_EXPIRY_MS = 15 * SECOND_MS
"""If a host dies while it deletes a namespace, the namespace is open again after this time."""

# --- host ---
# Shards, topics and leases.
SHARDS_PER_HOST_MAX = 256
"""Shards of one host. Each has three threads and two sessions, a third session while its rows are counted, and one more
thread and session once its items are exported.
"""
TOPICS_PER_SHARD_MAX = 200_000
"""Topics with items on one shard. Enqueues to further topics get OVERLOADED."""
TOPICS_PER_TICK_MAX = 250
"""Empty topics of a shard that are checked in one tick."""
SWEEP_QUEUES_MAX = 250
"""Topics that the dispatcher checks in one tick, and as many again among the topics whose caps allow deliveries."""
TOPIC_IDLE_MS = 30 * SECOND_MS
"""A topic that is empty for this long is forgotten."""
OPEN_LEASES_MAX = 250_000
"""Items of one shard that are under lease or claimed ahead of consumers. At the bound, dequeues wait until leases end.
"""
METRIC_NAMESPACES_MAX = 1_000
"""Namespaces with labels of their own in metrics. All others share the label (other)."""
EVENT_LOG_WAITING_MAX = 100_000
"""Enqueues and ends of deliveries in the queue of the event log. Beyond it, they are only counted."""
EVENT_LOG_FIRSTS_MAX = 100_000
"""Sampled items to be delivered again, whose first delivery time the event log remembers."""
EVENT_LOG_UNWRITTEN_BYTES_MAX = 16 * MIB
"""Lines of the event log of one kind, lives or roll-ups, in memory while the disk refuses them. The oldest lines are
dropped first, and counted.
"""
EVENT_LOG_FILE_BYTES_MAX = 64 * MIB
"""A file of the event log is closed at this size, or at an eighth of event_log_bytes_max."""
ROLLUP_SERIES_MAX = 10_000
"""Rows of one topic each in a minute of the event log. Beyond it, events are counted by namespace, in at most as many
further rows.
"""
TICK_MS = 20
"""How often an idle shard checks for work that has become due."""

# Connections.
CONNECTIONS_MAX = 10_000
"""Connections of all clients together (connections_max). The host turns further ones away."""
CONNECTIONS_PER_ADDRESS_MAX = 5_000
"""Connections of one client address (connections_per_address_max)."""
UNKNOWN_CONNECTIONS_MAX = 1_000
"""Connections that are not logged in, while access is enforced; 100 of one address. Further ones are turned away."""
CONNECTIONS_PER_PRINCIPAL_MAX = 5_000
"""Connections of one principal, while access is enforced. A further one is not logged in."""
OPERATOR_CONNECTIONS_MAX = 16
"""Connections to the metrics port, each with one request. A further one ends the oldest."""
META_SESSIONS_MAX = 6
"""Sessions of one host with the meta database."""
FIRST_FRAME_MS_MAX = 10 * SECOND_MS
"""A new connection must send its first frame header within this time."""
FRAME_HEADER_MS_MAX = 5 * SECOND_MS
"""The longest time from the first byte of a frame header to its last."""
FRAME_BODY_MS_MIN = 10 * SECOND_MS
"""The time that any frame body has to arrive, however short it is."""
FRAME_BODY_BYTES_PER_MS_MIN = 64
"""A body of n bytes must arrive within FRAME_BODY_MS_MIN + n / this."""
IDLE_MS_MAX = 10 * MINUTE_MS
"""A connection without a call for this long is closed (idle_ms_max)."""
WRITE_STALL_MS_MAX = 10 * SECOND_MS
"""A connection whose peer takes no byte of a response for this long is closed."""
OPERATOR_CALL_MS_MAX = 10 * SECOND_MS
"""How long a connection to the metrics port lasts at most, even if the host is the slow side."""
CHORE_PAUSE_MS = 2
"""The pause between two turns that accept, check or close connections. A call needs a dozen turns and should not meet a
chore in each turn.
"""

# Calls in flight and calls that wait.
CALLS_IN_FLIGHT_PER_CONNECTION_MAX = 64
"""Calls in flight on one connection. Further calls are not read until one ends."""
CALLS_IN_FLIGHT_PER_PEER_MAX = 4_096
"""Calls in flight on the connection of another host of the cluster, which forwards those of many callers. Further calls
get OVERLOADED from that host.
"""
CALLS_IN_FLIGHT_MAX = 65_536
"""Calls in flight on all connections together. Further calls get OVERLOADED."""
CALLS_WAITING_MAX = 1_024
"""Calls of all connections that were read and have not started. Beyond it, each connection holds at most one."""
DEQUEUES_WAITING_MAX = 50_000
"""Dequeue calls that wait on one host. Further ones get OVERLOADED."""
DEQUEUE_TOPICS_WAITING_MAX = 200_000
"""Topics that the waiting dequeue calls of a host name together. Further ones get OVERLOADED."""
TOPIC_PREFIXES_MAX = 1_000
"""Prefixes of a namespace's topics that dequeues name on a host in TOPIC_PREFIX_IDLE_MS. Beyond it: OVERLOADED."""
TOPIC_PREFIXES_OF_HOST_MAX = 10_000
"""Topic prefixes of all namespaces together."""
TOPIC_PREFIXES_NESTED_MAX = 8
"""Prefixes of a namespace each of which begins with the one before. A further one gets OVERLOADED."""
TOPIC_PREFIX_IDLE_MS = MINUTE_MS
"""A prefix that no dequeue has named for this long is forgotten."""
ANY_TOPICS_PER_CALL_MAX = 100
"""Topics from which one dequeue from any topic gets items. It gets fewer items than it asked for if each has few."""
LONG_POLL_TOPICS_PER_ADDRESS_MAX = 50_000
"""Topics that the waiting dequeues of one client address name together. Further dequeues get OVERLOADED."""
DEQUEUES_ENDED_PER_TICK = 500
"""Waiting dequeue calls that one tick ends after the host has lost its last shard."""
EXTENSIONS_WAITING_MAX = 100_000
"""Extensions of leases that wait for one shard. Further ones get OVERLOADED."""
LOOK_UPS_WAITING_MAX = 10_000
"""Look-ups of calls and of the TTL scan that wait for one shard, whose server can be silent. Further calls get
OVERLOADED.
"""
PAGES_WAITING_MAX = 200
"""Calls that wait for memory for their pages (PAGES_BYTES_MAX). Further ones get OVERLOADED."""
EXPORT_PAGES_WAITING_MAX = 8
"""Calls that wait for one shard to read the pages of other exports. Further ones get OVERLOADED."""
META_CALLS_WAITING_MAX = 16
"""Admin calls that wait for a thread of the meta database. Further ones get OVERLOADED."""
META_CALLS_RETRY_MS = 1 * SECOND_MS
"""The retry_after_ms of a refused admin call."""
QUOTA_CALLS_WAITING_MAX = 1_000
"""Enqueues of one namespace that wait on one host to be counted against its quota. Further ones get RATE_LIMITED if the
quota is used up, else OVERLOADED.
"""
QUOTAS_CALLS_WAITING_MAX = 10_000
"""Enqueues of all namespaces together that wait on one host to be counted against a quota."""

# Memory of connections.
CALL_BYTES_PER_CONNECTION_MAX = 32 * MIB
"""Frames of the calls in flight on one connection. Beyond it, nothing more is read from the connection."""
CALL_BYTES_PER_PEER_MAX = 128 * MIB
"""Frames of the calls in flight on the connection of another host of the cluster."""
CALL_BYTES_MAX = 512 * MIB
"""Frames of calls in flight on all connections together. Further calls get OVERLOADED."""
WAITING_BYTES_PER_CONNECTION_MAX = 256 * KIB
"""Frames of calls that wait to be started on one connection. Beyond it, nothing more is read from the connection. One
more frame can be held.
"""
WAITING_BYTES_PER_PEER_MAX = 16 * MIB
"""Frames of calls that wait to be started on the connection of another host, which forwards those of many callers."""
PARTIAL_FRAME_BYTES_MAX = 256 * MIB
"""Bytes of incomplete frames on all connections together."""
PARTIAL_FRAME_BYTES_PER_ADDRESS_MAX = 64 * MIB
"""Bytes of incomplete frames from one client address. Beyond it, its connections are read one after the other."""
WRITE_BUFFER_BYTES_MAX = 4 * MIB
"""Responses that one connection holds for a slow peer. Beyond it, no further call of the connection is read."""
UNSENT_ANSWER_BYTES_MAX = 256 * MIB
"""Responses on all connections together that their peers have not taken yet. Beyond it, connections that hold much of
it are closed.
"""

# Memory of items.
ENQUEUE_BUFFER_ITEMS_MAX = 20_000
"""Enqueued items of a shard that wait to be written. Beyond it, enqueues use other shards or get OVERLOADED."""
ENQUEUE_BUFFER_BYTES_MAX = 64 * MIB
"""Payload and metadata of the enqueued items of one shard that wait in memory to be written."""
RESIDENT_BYTES_MAX = 32 * MIB
"""Memory for recently enqueued items of one shard, which are delivered without a read."""
RESIDENT_ITEM_BYTES = 512
"""Memory for an item without its payload and metadata."""
PREFETCH_BYTES_MAX = 64 * MIB
"""Memory of the host for items that are claimed ahead of consumers."""
WINDOW_ITEMS_MAX = 4_000
"""Ready items of one topic and shard in memory. A window is refilled by a quarter of its bound when it holds less than
a quarter.
"""
WINDOW_ITEMS_MIN = 16
"""The smallest bound of a window."""
WINDOWS_OF_SHARD_ITEMS_MAX = 400_000
"""Items in all windows of a shard together, 52 bytes each. Beyond it, each can hold an equal part of half of it."""
DEDUP_FILTERS_OF_SHARD_BYTES_MAX = 64 * MIB
"""Memory for the dedup ids of a shard. Beyond it, the namespace with the most ids forgets its older half, or less."""
DEDUP_IDS_KEPT = 1_000
"""The latest dedup ids of a namespace, which a shard knows even if memory is short: 10 to 16 KiB for each namespace."""
PACKS_OF_SHARD_BYTES_MAX = 16 * MIB
"""Memory for the packs of one shard. Beyond it, items get rows at once; old ones get rows from half of it on. A new
owner gives rows to all packed items before it serves.
"""
PACKS_OF_SHARD_MAX = 4_000
"""Packs of one shard. Beyond it, items get rows at once; old ones get rows from half of it on."""
PACKS_OF_HOST_BYTES_MAX = 128 * MIB
"""Memory for the packs of all shards of a host. Beyond it, items get rows at once; old ones from half of it on."""
PACKED_ITEM_BYTES = 200
"""Memory of the host for a packed item, without its payload and metadata."""
PAGES_BYTES_MAX = 64 * MIB
"""Memory for all pages of items that a host reads at the same time. A larger page is read alone."""
SLICE_ITEMS_MAX = 100
"""Items of a page that one turn of the event loop encodes, unless SLICE_BYTES_MAX is reached first."""

# One transaction.
TRANSACTIONS_PER_SERVER_MAX = 1
"""Transactions that the shards of a host run on one server at a time (transactions_per_server_max)."""
TRANSACTION_INSERTS_MAX = 2_000
"""Items that one transaction inserts."""
TRANSACTION_INSERT_BYTES_MAX = 4 * MIB
"""Payload and metadata that one transaction inserts. The event loop writes them in one turn: as SQL text, 3 ms per MiB.
"""
TRANSACTION_CLAIMS_MAX = 2_000
"""Items that one transaction claims."""
TRANSACTION_DEDUP_BLOCKS_MAX = 256
"""Blocks of the log of dedup ids that one transaction reads to check possible repeats. A block is about 3 KiB."""
TRANSACTION_FETCH_BYTES_MAX = 16 * MIB
"""The largest contents, as their namespaces allow, that a transaction reads for claims, and as much again to refill
windows.
"""
TRANSACTION_CONTENTS_BYTES_MAX = TRANSACTION_FETCH_BYTES_MAX + CONTENT_BYTES_MAX
"""Contents that a transaction really reads. Rows can date from a time when their namespaces allowed more."""
TRANSACTION_CHANGES_MAX = 4_000
"""Acks that one transaction writes, and as many nacks."""
TRANSACTION_TOPICS_GONE_MAX = 1_000
"""Empty topics that one transaction deletes."""
TRANSACTION_LEASE_ENDS_MAX = 2_000
"""Expired leases that one transaction writes, in addition to the writes that callers wait for."""
TRANSACTION_EXTENSIONS_MAX = 500
"""Extensions of leases that one transaction writes."""
TRANSACTION_REFILLS_MAX = 64
"""Windows that one transaction refills."""
TRANSACTION_LOOK_UPS_MAX = 300
"""Rows that one transaction looks up. Larger requests are split, because one turn of the event loop handles all rows of
a part.
"""
TRANSACTION_PAYLOAD_LOOK_UPS_MAX = 16
"""Rows that one transaction looks up with their contents, each of which can be as large as the limits allow."""
EXPIRY_SCAN_ITEMS = 1_000
"""Rows that one step of the TTL scan reads."""
STATEMENT_BYTES_MAX = 1 * MIB
"""The length of one SQL statement."""
PACKET_BYTES_MAX = 4 * MIB
"""SQL text in one round trip to the server, without prepared inserts. Servers take 16 MiB and more by default."""

# The bulk lane.
BULK_SHARED_ITEMS_MAX = 100
"""Items of bulk enqueues being written, on all shards of a host, while interactive calls are active."""
BULK_SHARED_BYTES_MAX = 128 * KIB
"""Payload of bulk enqueues being written while interactive calls are active; one slice of a call is always admitted."""
BULK_ITEMS_MAX = 4_000
"""Items of bulk enqueues being written, on all shards of a host, while no interactive call is active."""
BULK_BYTES_MAX = 8 * MIB
"""Payload of bulk enqueues being written while no interactive call is active."""
BULK_WAIT_MS_MAX = 1 * SECOND_MS
"""How long a part of a bulk enqueue waits for its turn. Then it gets OVERLOADED."""

# Jobs.
JOBS_PER_HOST_MAX = 1_000
"""Jobs that a host counts at the same time. Calls of further jobs get OVERLOADED."""
JOB_LOOK_UP_MS_MAX = 1 * SECOND_MS
"""How long the first call of a job waits for its record. Then it proceeds, and no rate applies until it is known."""
JOB_WRITE_MS = 2 * SECOND_MS
"""How often a host writes its counts of jobs and reads their rates. A crash loses the counts of this time."""
JOB_IDLE_MS = 30 * SECOND_MS
"""A host forgets a job without calls for this long, after it has written all its counts."""
JOB_ACTIVE_MS = 6 * SECOND_MS
"""The rate of a job is divided among the hosts that have had calls of it within this time."""
JOB_BURST_MS = 200
"""A job with a rate can be ahead of it by the items of this time, and by one call."""
JOB_TURNS_MS_MAX = 5 * SECOND_MS
"""The turns that a rate gives to refused calls lie within this time after the first one, so that callers who never
return use up no more of the rate.
"""

# Waits of callers.
ROUTE_WAIT_MS_MAX = 5 * SECOND_MS
"""How long a call is held for a shard that moves from one host to another."""
ROUTE_RETRY_MS = 500
"""The retry_after_ms of a call that needs a shard which no host serves."""
SICK_RETRY_MS = SECOND_MS
"""The retry_after_ms of a call that a sick shard has not done, because no other host takes that shard soon."""
CALL_MS_MAX = 20 * SECOND_MS
"""How long a call waits for a shard's commit. Then it gets UNAVAILABLE, and its outcome is unknown."""
DEDUP_WAIT_MS_MAX = 10 * SECOND_MS
"""How long an item with a dedup id waits for a new owner to read the ids of its namespace. Then it gets UNAVAILABLE,
and nothing was done.
"""
CALL_CANCEL_MS_MAX = 5 * SECOND_MS
"""The time in which a cancelled call must end."""
ENQUEUE_WAIT_MS_MAX = 1 * SECOND_MS
"""How long an enqueue waits to be started. Then it gets OVERLOADED: callers send more than the host can do."""
LINGER_MS_MAX = 100
"""How long a dequeue that could return some of its items waits for claims in progress."""
CLAIM_WAIT_MS_MAX = 5 * SECOND_MS
"""How long a dequeue waits for the claim of ready items beyond its wait_ms."""
COUNT_WAIT_MS_MAX = 10 * SECOND_MS
"""How long a listing of topics waits for a new owner to count the rows of its shard. Then it gets UNAVAILABLE."""
PREFETCH_HOLD_MS_MAX = 2 * SECOND_MS
"""A prefetched item that was not delivered for this long is unclaimed."""
META_CALL_MS_MAX = 8 * SECOND_MS
"""An admin call on the meta database returns within this time, done or not."""
DRAIN_MS_MAX = 20 * SECOND_MS
"""How long a host drains after SIGTERM (drain_ms_max). Then unfinished work is cut off."""
PART_MS = 500
"""A host that drains closes a connection without calls for this long. Until then it refuses further calls."""

# Waits for servers.
CONNECT_MS_MAX = 5 * SECOND_MS
"""How long a host waits for a connection to a server."""
STATEMENT_MS_MAX = 30 * SECOND_MS
"""How long a host waits for the response to any SQL statement."""
META_STATEMENT_MS_MAX = 3 * SECOND_MS
"""How long a host waits for the response to a statement on the meta database."""
BEAT_STATEMENT_MS_MAX = 600
"""How long a host waits for a connection to the meta database, and for each response, when it writes a heartbeat."""
LOCK_WAIT_MS_MAX = 5 * SECOND_MS
"""How long a host waits for the lock of a shard after it has killed the session of a dead owner."""
OWNER_WAIT_MS_MAX = SECOND_MS
"""How long a host waits for the lock of a shard that a living host owns, before it checks again that the owner lives.
MySQL takes only whole seconds here.
"""
COUNT_MS_MAX = 10 * MINUTE_MS
"""The longest time in which a new owner counts the rows of its shard."""
DURABILITY_CHECK_MS = MINUTE_MS
"""How often a host checks that its servers are durable."""
BREAKER_OPENS_MS_MAX = 1_000
"""How soon the circuit breaker of a shard opens after its server begins to hang."""
LOOP_SILENCE_MS_MAX = 5 * SECOND_MS
"""An event loop that has not turned for this long is dead, and /livez reports it."""

assert WINDOW_ITEMS_MIN >= 8, "a quarter of a window must be some items"
assert CONTENT_BYTES_MAX < FRAME_BYTES_MAX // 2, "the largest item must fit a frame"
assert BATCH_ITEMS_MAX * 16 < FRAME_ELEMENTS_MAX, "the largest batch must fit, and some fields that are not known yet"
assert DEQUEUE_ANSWER_BYTES_MAX + CONTENT_BYTES_MAX < FRAME_BYTES_MAX
assert BATCH_ITEMS_MAX <= DEDUP_IDS_KEPT <= DEDUP_IDS_MIN, "the ids of the last call are known"
assert WAIT_MS_MAX < IDLE_MS_MAX, "a long poll must not look idle"
assert LONG_POLL_TOPICS_PER_ADDRESS_MAX * 2 <= DEQUEUE_TOPICS_WAITING_MAX, "one address must leave room for others"
assert CALL_BYTES_PER_CONNECTION_MAX >= FRAME_BYTES_MAX, "the largest frame must be a call"
assert HEARTBEAT_MS * 3 < CENSUS_MS_MAX < CENSUS_EXPIRY_MS, "every host sees a census in time, and before it ends"
assert CENSUS_MS_MAX + 2 * META_STATEMENT_MS_MAX < CENSUS_EXPIRY_MS, "a deletion ends before its namespace opens again"
assert HEARTBEAT_MS * 3 < HOST_DEAD_MS, "a host is not dead for one lost heartbeat"
assert BEAT_STATEMENT_MS_MAX * 4 <= HOST_DEAD_MS, "a host that meets a hanging server has time for another heartbeat"
assert PACKS_OF_SHARD_BYTES_MAX <= PACKS_OF_HOST_BYTES_MAX, "one shard may use what it may have"
assert 2 * TRANSACTION_INSERTS_MAX + BATCH_ITEMS_MAX <= ENQUEUE_BUFFER_ITEMS_MAX, "no placement may fill a buffer"
assert 2 * TRANSACTION_INSERT_BYTES_MAX + FRAME_BYTES_MAX <= ENQUEUE_BUFFER_BYTES_MAX, "no placement may fill a buffer"
assert 2 * JOB_WRITE_MS < JOB_ACTIVE_MS < JOB_IDLE_MS, "who counts a job has shown it lately"
assert PREFETCH_HOLD_MS_MAX < CLAIM_SLACK_MS, "a prefetched claim must still cover the lease at hand-out"
