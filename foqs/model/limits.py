"""The bounds that a caller or an operator can meet; what one limit owes to another is asserted at the end.

What only one mechanism uses stands in its own module, such as foqs.server.mysql_server or foqs.shard.writer.keeper.
Namespace limits are defaults that an operator may change within the hard bounds given here.
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

# --- names ---
TOPIC_BYTES_MAX = 255
NAMESPACE_NAME_CHARS_MAX = 64
NAMESPACE_NUMBER_MAX = (1 << 32) - 1
"""As the columns hold it. Numbers of deleted namespaces do not come back."""
NAMESPACES_MAX = 20_000
"""Of the cluster: every host has all of them in memory and reads them every HEARTBEAT_MS."""

# --- one call ---
FRAME_BYTES_MAX = 16 * MIB
BATCH_ITEMS_MAX = 1_000
DEQUEUE_TOPICS_MAX = 1_000
DEQUEUE_ITEMS_MAX = 1_000
"""Of one answer, whatever its topics' counts add up to."""
DEQUEUE_ANSWER_BYTES_MAX = 12 * MIB
PAGE_ITEMS_MAX = 1_000
WAIT_MS_MAX = 30 * SECOND_MS

# --- one item (defaults of a namespace, and the hard bounds) ---
PAYLOAD_BYTES_DEFAULT = 10 * KIB
PAYLOAD_BYTES_MAX = 1 * MIB
METADATA_BYTES_DEFAULT = 512
METADATA_BYTES_MAX = 64 * KIB - 1
TRACE_CONTEXT_BYTES_MAX = 128
CONTENT_BYTES_MAX = PAYLOAD_BYTES_MAX + METADATA_BYTES_MAX + TRACE_CONTEXT_BYTES_MAX
"""All that an item carries for its consumers."""
LEASE_MS_MIN = 1 * SECOND_MS
LEASE_MS_DEFAULT = 30 * SECOND_MS
LEASE_MS_MAX = 12 * HOUR_MS
DELAY_MS_MAX = 90 * DAY_MS
TTL_MS_DEFAULT = 14 * DAY_MS
TTL_MS_MAX = 90 * DAY_MS
ATTEMPTS_DEFAULT = 16
ATTEMPTS_MAX = 1_000

# --- one namespace ---
ENQUEUES_PER_MINUTE_DEFAULT = 6_000_000
ENQUEUES_PER_MINUTE_MAX = 1_000_000_000

# --- the front door ---
CONNECTIONS_MAX = 10_000
CONNECTIONS_PER_ADDRESS_MAX = 5_000
CALLS_IN_FLIGHT_PER_CONNECTION_MAX = 64
CALL_BYTES_PER_CONNECTION_MAX = 32 * MIB
"""Frames of the calls in flight; beyond it nothing more of the connection is read, as beyond the calls."""
WAITING_BYTES_PER_CONNECTION_MAX = 256 * KIB
"""Frames of calls that wait to be started; beyond it nothing more of the connection is read. One more may be there."""
CALLS_IN_FLIGHT_MAX = 65_536
"""Of all connections together; past it a call is refused with OVERLOADED."""
CALL_BYTES_MAX = 512 * MIB
"""Of all connections together: frames of calls in flight; past it a call is refused with OVERLOADED."""
TURN_WORK_MAX = 64
"""What one turn of the event loop takes from all connections: a call counts 1, and 1 for some elements or bytes."""
TURN_WORK_SHARED_MAX = 16
"""The same while more than one caller has calls done, so that each is served sooner."""
LONG_POLL_TOPICS_PER_ADDRESS_MAX = 50_000
"""Of the dequeue calls of an address that wait, each counted with all its topics; past it OVERLOADED."""
ENQUEUES_RUNNING_PER_CALLER_MAX = 128
"""Past it enqueues of that address in that namespace wait: they all end with one commit, in one turn. Those that have
run for a while do not count: their shard may be sick.
"""
CALLS_RUNNING_PER_CALLER_MAX = 512
"""The same of all other calls but long polls."""
CALLS_WAITING_MAX = 1_024
"""Of all connections together: calls that were read and wait to be started; past it each connection has one at most."""
ENQUEUE_WAIT_MS_MAX = 1 * SECOND_MS
"""An enqueue that has waited longer to be started is refused with OVERLOADED: more is sent than the host can do."""
SHARE_MEMORY_MS = 50
"""Half of the work of a caller is forgotten after this time. Several share while work of several is remembered."""
PENALTY_FACTOR = 2
"""A caller that did most of a turn, while others did little, is not served for so many times as long as that took."""
PENALTY_MS_MAX = 100
"""But no longer than this."""
FIRST_FRAME_MS_MAX = 10 * SECOND_MS
"""A new connection must send its first whole header within this time."""
FRAME_HEADER_MS_MAX = 5 * SECOND_MS
"""From the first byte of a length header to its last."""
FRAME_BODY_MS_MIN = 10 * SECOND_MS
FRAME_BODY_BYTES_PER_MS_MIN = 64
"""A body of n bytes must be there within FRAME_BODY_MS_MIN + n / this."""
IDLE_MS_MAX = 10 * MINUTE_MS
WRITE_STALL_MS_MAX = 10 * SECOND_MS
WRITE_BUFFER_BYTES_MAX = 4 * MIB
FRAME_ELEMENTS_MAX = 20_000
"""Container elements and struct fields of one message together."""
FRAME_FIELDS_PER_STRUCT_MAX = 1_000
FRAME_DEPTH_MAX = 16
METHOD_NAME_BYTES_MAX = 64
PARTIAL_FRAME_BYTES_MAX = 256 * MIB
"""Of all connections together: bytes of frames that are not complete yet."""
PARTIAL_FRAME_BYTES_PER_ADDRESS_MAX = 64 * MIB
"""Of the connections of an address; past it they are read one after the other."""
READ_BYTES_MAX = 256 * KIB
"""What an event loop reads of a connection at once."""
UNSENT_ANSWER_BYTES_MAX = 256 * MIB
"""Of all connections together: bytes of answers that their peers have not taken yet."""
CONNECTION_SWEEP_MS = 500
"""How often the deadlines above are looked at; each is overrun by this and what the look takes, 0.2 s for 10,000."""
CONNECTIONS_PER_SWEEP_TURN = 100
"""So many are looked at in one turn of the event loop; one that has to go counts as ten."""
LISTEN_BACKLOG = 1_024
ACCEPTS_PER_TURN_MAX = 1
"""Connections that one turn of the event loop accepts: each costs 0.25 ms of it."""
TURN_AWAYS_PER_ACCEPT = 4
"""So many that are turned away count as one that is accepted."""
CHORE_PAUSE_MS = 2
"""Between two turns that accept connections, look at them or close them: a call needs a dozen turns, and shall not find
a chore in each of them.
"""
HANG_UPS_PER_TURN_MAX = 5
"""Connections that one turn closes because they broke the protocol."""
ACCEPT_PAUSE_MS = 1 * SECOND_MS
"""Before more connections are accepted when the system is out of something that they need."""
FILES_BESIDE_CONNECTIONS = 1_024
"""Open files that a host keeps for its databases, its log and what comes up, out of those that the system allows."""
CALL_CANCEL_MS_MAX = 5 * SECOND_MS
"""A cancelled call must have ended by then."""

# --- one shard in memory ---
ENQUEUE_BUFFER_ITEMS_MAX = 20_000
ENQUEUE_BUFFER_BYTES_MAX = 64 * MIB
ENQUEUE_BUFFER_RETRY_MS = 200
TRANSACTIONS_PER_SERVER_MAX = 1
"""Of a host's shards on one server, at the same time; an operator may change it."""
TRANSACTION_INSERTS_MAX = 2_000
TRANSACTION_INSERT_BYTES_MAX = 4 * MIB
"""The event loop writes these in one turn: as SQL text, 3 ms a MiB."""
PACK_ITEMS_MIN = 8
"""Of a transaction: for fewer a pack does not pay."""
PACK_BYTES_MAX = 64 * KIB
"""One item more may be in it."""
PACK_ITEM_BYTES_MAX = 4 * KIB
PACKED_ITEM_BYTES = 200
"""What a packed item has in the memory of its host beside its payload and metadata."""
PACK_MS_MAX = 10 * SECOND_MS
"""What is left of a pack then gets rows, a few at a time: nobody waits for that, and all else would."""
PROMOTE_OLD_ITEMS = 100
PROMOTE_OLD_EVERY_MS = 200
"""So many items so often, where there is nothing else to do."""
PROMOTE_OLD_RATIO = 4
"""One item for so many that a transaction lets come and go."""
PROMOTE_OLD_ITEMS_MAX = 500
"""Items that get rows in one transaction because they are old."""
PACKS_OF_SHARD_BYTES_MAX = 16 * MIB
"""Past it items get rows at once. A new owner gives rows to all of them before it serves."""
PACKS_OF_SHARD_MAX = 4_000
PACKS_OF_HOST_BYTES_MAX = 128 * MIB
"""Of all its shards together, since packs are in its memory; past it items get rows at once."""
TRANSACTION_CLAIMS_MAX = 2_000
TRANSACTION_FETCH_BYTES_MAX = 16 * MIB
"""Of rows that a transaction reads for claims, and again to refill windows, by what their namespaces allow."""
TRANSACTION_CONTENTS_BYTES_MAX = TRANSACTION_FETCH_BYTES_MAX + CONTENT_BYTES_MAX
"""The same by what is there: rows may have come when their namespaces allowed more."""
TRANSACTION_CHANGES_MAX = 4_000
TRANSACTION_TOPICS_GONE_MAX = 1_000
TRANSACTION_LEASE_ENDS_MAX = 2_000
"""Leases that nobody settled, beside all that callers wait for."""
TICK_LEASE_ENDS_MAX = 2_000
"""The rest of the leases that end together are ended in the ticks after it."""
TRANSACTION_EXTENSIONS_MAX = 500
EXTENSIONS_WAITING_MAX = 100_000
LOOK_UPS_WAITING_MAX = 10_000
"""While a shard's server does not answer; each is of a call or of the TTL scan."""
TRANSACTION_REFILLS_MAX = 64
TRANSACTION_LOOK_UPS_MAX = 300
"""Whoever looks for more rows does so in parts: what is done with them when they come is one turn of the event loop."""
TRANSACTION_PAYLOAD_LOOK_UPS_MAX = 16
"""With metadata and payload, of which each may have the most that there can be."""
STATEMENT_BYTES_MAX = 1 * MIB
PACKET_BYTES_MAX = 4 * MIB
"""Statements that go in one round trip, beside prepared inserts; servers take 16 MiB and more by default."""
PREPARED_INSERT_ROWS = 32
"""What is left of a transaction's rows goes as SQL text, which costs the server a third more."""
STATEMENT_IDS_MAX = 900
"""Below MariaDB's in_predicate_conversion_threshold of 1,000, from which a list becomes a derived table to join."""
WINDOW_ITEMS_MAX = 4_000
"""A window that holds under a quarter of its bound, and is not complete, is refilled by a quarter."""
WINDOW_ITEMS_MIN = 16
WINDOWS_OF_SHARD_ITEMS_MAX = 400_000
"""Of all windows of a shard together, unless that is less than WINDOW_ITEMS_MIN each: about 52 bytes an item."""
READ_US_TARGET = 10_000
"""Reads of a transaction that take longer are fewer next time: what commits with them waits for them."""
READ_ROWS_FIRST = 1_000
READ_ROWS_MIN = 32
READ_ROWS_MAX = 8_000
"""That a transaction reads to refill windows, READ_ROWS_MIN more may be among them; and as many of items it claims."""
OLDEST_URGENCIES_MAX = 16
WARM_UPS_PER_TICK = 4
TIMER_ENTRIES_SPARE = 4_000
RESIDENT_BYTES_MAX = 32 * MIB
"""Recently enqueued items kept to be served without a read."""
RESIDENT_ITEM_BYTES = 512
"""What an item costs beside its payload and metadata."""
CLAIM_SPARSE_RATIO = 8
"""A claim with less than one in so many of its items still open is rewritten."""
CLAIM_REWRITE_ITEMS_MIN = 64
CLAIM_REWRITE_EVERY_MS = 10 * SECOND_MS
OPEN_LEASES_MAX = 250_000
"""Of one shard: items under lease or claimed by the prefetch buffer."""
OPEN_LEASES_OF_TOPIC_RATIO = 4
"""A topic may have so many times what is left free of them: alone 200,000, two of them 111,111 each."""
TOPICS_PER_SHARD_MAX = 200_000
TOPIC_NUMBER_MAX = (1 << 31) - 1
"""As the columns hold it. Numbers of forgotten topics do not come back."""
TOPIC_IDLE_MS = 30 * SECOND_MS
"""An empty topic is forgotten after this time."""
TOPICS_PER_TICK_MAX = 250
"""Of a shard: topics that were empty for so long, and are looked at in one tick."""

# --- circuit breaker of a shard ---
BREAKER_OPENS_MS_MAX = 1_000
"""From the moment at which a server hangs, whatever its shards are doing."""

# --- prefetch ---
PREFETCH_HORIZON_MS = 100
PREFETCH_ITEMS_PER_TOPIC_MAX = 2_000
PREFETCH_BEGIN_ITEMS_MAX = 32
"""Ahead of consumers whose rate is not known yet."""
PREFETCH_BYTES_MAX = 64 * MIB
PREFETCH_SWEEP_MS = 500
SLICE_TOPICS_MAX = 125
"""Of each shard one: what a page of topics looks at in one turn of the event loop, in about a millisecond."""
SLICE_ITEMS_MAX = 100
"""Of a page of items, or SLICE_BYTES_MAX: what is told, or put into the answer's frame, in one turn of the loop."""
SLICE_BYTES_MAX = 256 * KIB
"""One item more may be among them."""
SLICE_DEBT_MS_MAX = 2
"""So much may all that is done in slices be ahead of its half of the loop's time."""
SWEEP_QUEUES_MAX = 1_000
"""Topics that are looked at in one tick."""
AHEAD_LEASE_MS = 30 * SECOND_MS
"""The lease that a claim made ahead of consumers backs. A longer one is committed before it is handed out, and what
nobody has seen when its host dies is ready again this and CLAIM_SLACK_MS after its claim.
"""
PREFETCH_HOLD_MS_MAX = 2 * SECOND_MS
"""A claimed item not handed out for this long goes back."""
CLAIM_SLACK_MS = 5 * SECOND_MS
"""A claim outlives the lease it backs by this, so that handing out needs no second write."""
LINGER_MS_MAX = 100
"""A dequeue that has some but not all of its items waits this long at most for the claims on the way."""
DEQUEUES_WAITING_MAX = 50_000
DEQUEUE_TOPICS_WAITING_MAX = 200_000
"""Of the dequeue calls that wait, each counted with all its topics."""
DEQUEUES_ENDED_PER_TICK = 500
"""Of those that wait for a host that has lost its last shard."""
CALL_MS_MAX = 20 * SECOND_MS
"""How long a call waits for a shard's commit; past it the caller is told that the outcome is unknown."""
COUNT_WAIT_MS_MAX = 10 * SECOND_MS
NO_SHARD_RETRY_MS = 500
CLAIM_WAIT_MS_MAX = 5 * SECOND_MS
"""How long a dequeue waits for the claim of items that are ready, whatever its wait_ms."""

# --- time ---
HEARTBEAT_MS = 1 * SECOND_MS
HOST_DEAD_MS = 6 * SECOND_MS
"""A host is dead when another one has seen its row not to change for so long, in a watch without gaps."""
HOST_WATCH_GAP_MS_MAX = 3 * SECOND_MS
"""Between two rounds of that watch: past it the watch starts anew."""
HOST_ROW_MS = DAY_MS
"""The row of a host that beat last so long ago is deleted by the next host that starts."""
HOSTS_MAX = 1_000
"""Rows of hosts in the meta database, dead ones included."""
LOCK_WAIT_MS_MAX = 5 * SECOND_MS
"""For a shard's lock, after the session of a dead owner was killed."""
OWNER_SILENT_MS_MAX = 30 * SECOND_MS
"""A server ends an owner's session that says nothing for so long, whether or not anybody may KILL it."""
STEADY_WRITE_MS = 2 * SECOND_MS
"""With leases open a shard writes its steady clock at least so often: a take-over lets them run so much longer."""
DURABILITY_CHECK_MS = MINUTE_MS
COUNT_MS_MAX = 10 * MINUTE_MS
STATEMENT_MS_MAX = 30 * SECOND_MS
CONNECT_MS_MAX = 5 * SECOND_MS
DRAIN_MS_MAX = 20 * SECOND_MS
SWEEP_CHUNK_ITEMS = 200
"""Delayed items that one transaction makes ready: the more, the longer do enqueues wait beside a storm of them."""
EXPIRY_SCAN_ITEMS = 1_000
EXPIRY_SCAN_PAUSE_MS = 200
"""Between two chunks of the TTL scan: a million rows take a little over three minutes."""
EXPIRY_LAP_PAUSE_MS = 2 * SECOND_MS
"""Between two walks of the TTL scan through a shard: what has expired is not delivered anyhow."""
EXPIRY_LAP_MS_MAX = 12 * HOUR_MS
"""Between them while no row is known to expire before."""
PAGE_BYTES_MAX = 2 * MIB
"""Each shard gives its part of it, and one item at least. The event loop hands it to the socket in one turn."""
PAGES_BYTES_MAX = 64 * MIB
"""Of all pages of items that a host reads at the same time; a larger one is read alone."""
PAGES_WAITING_MAX = 200
"""Of those whose bytes are held by others; past it OVERLOADED."""
PAGE_RETRY_MS = 500
TICK_MS = 20
"""How often a shard with nothing to do looks for what has become due."""
OWNER_WAIT_MS_MAX = SECOND_MS
"""How long a host waits for the lock of a shard that a living one has, before it looks again whether that one is dead.
In whole seconds: MySQL knows no parts of them there."""
AFTER_ERROR_MS_MAX = 1 * SECOND_MS
"""For the next answer to what was sent along with a command that failed; then the session is given up."""
META_STATEMENT_MS_MAX = 3 * SECOND_MS
META_SESSIONS_MAX = 4
META_CALL_THREADS = 2
"""For admin calls that work on the meta database."""
META_CALLS_WAITING_MAX = 16
"""Admin calls that wait for one of these threads; past it a call is refused with OVERLOADED."""
META_CALLS_RETRY_MS = 1 * SECOND_MS
META_CALL_MS_MAX = 8 * SECOND_MS
"""An admin call is answered by then, done or not."""
CENSUS_MS_MAX = 5 * SECOND_MS
"""Before a namespace is created or deleted, every shard's owner has to answer within this time."""
CENSUS_POLL_MS = 50
CENSUS_EXPIRY_MS = 15 * SECOND_MS
"""A namespace whose deletion was given up by a host that died is open again after this time."""
CENSUSES_MAX = 100
"""Open at a time in the cluster; past it namespaces are neither created nor deleted, with OVERLOADED."""

# --- the port for operators ---
OPERATOR_CONNECTIONS_MAX = 16
"""At a time; each is one question and one answer, and one more ends the oldest."""
OPERATOR_CALL_MS_MAX = 10 * SECOND_MS
"""From a connection to its end, whoever is slow."""
METRIC_NAMESPACES_MAX = 1_000
"""With labels of their own; all others are one together."""
AGES_ROUND_MS = 1 * SECOND_MS
"""Between two looks at all topics for the oldest ready item, at the least."""
AGES_TOPICS_PER_TICK = 100
"""So many topics are looked at in one tick."""
LOOP_SILENCE_MS_MAX = 5 * SECOND_MS
"""An event loop that has not turned for longer is dead: /livez says so."""

# --- one host ---
SHARD_ID_MAX = 65_535
SHARDS_PER_HOST_MAX = 256
"""Each has three threads and two sessions, and a third session while its rows are counted."""

assert WINDOW_ITEMS_MIN >= 8, "a quarter of a window must be some items"
assert CONTENT_BYTES_MAX < FRAME_BYTES_MAX // 2, "the largest item must fit a frame"
assert BATCH_ITEMS_MAX * 16 < FRAME_ELEMENTS_MAX, "the largest batch must fit, and some fields that are not known yet"
assert DEQUEUE_ANSWER_BYTES_MAX + CONTENT_BYTES_MAX < FRAME_BYTES_MAX
assert WAIT_MS_MAX < IDLE_MS_MAX, "a long poll must not look idle"
assert LONG_POLL_TOPICS_PER_ADDRESS_MAX * 2 <= DEQUEUE_TOPICS_WAITING_MAX, "one address must leave room for others"
assert CALL_BYTES_PER_CONNECTION_MAX >= FRAME_BYTES_MAX, "the largest frame must be a call"
assert HEARTBEAT_MS * 3 < CENSUS_MS_MAX < CENSUS_EXPIRY_MS, "every host sees a census in time, and before it ends"
assert CENSUS_MS_MAX + 2 * META_STATEMENT_MS_MAX < CENSUS_EXPIRY_MS, "a deletion ends before its namespace opens again"
assert HEARTBEAT_MS * 3 < HOST_DEAD_MS, "a host is not dead for one lost heartbeat"
assert HEARTBEAT_MS * 2 < HOST_WATCH_GAP_MS_MAX <= HOST_DEAD_MS // 2, "a gap must not hide a life"
assert PACKS_OF_SHARD_BYTES_MAX <= PACKS_OF_HOST_BYTES_MAX, "one shard may use what it may have"
assert 2 * TRANSACTION_INSERTS_MAX + BATCH_ITEMS_MAX <= ENQUEUE_BUFFER_ITEMS_MAX, "no placement may fill a buffer"
assert 2 * TRANSACTION_INSERT_BYTES_MAX + FRAME_BYTES_MAX <= ENQUEUE_BUFFER_BYTES_MAX, "no placement may fill a buffer"
assert PREFETCH_HOLD_MS_MAX < CLAIM_SLACK_MS, "a prefetched claim must still cover the lease at hand-out"
