# foqs: `make` lists what there is to make.
.DEFAULT_GOAL := help
.PHONY: help setup test-tools spark demo demo-spark test test-deep test-slow checks lint types imports unit test-mysql sim sim-clusters sim-serial sim-unique sim-in-flight sim-permits sim-gates sim-depths sim-aging sim-bulk power chaos chaos-order chaos-groups chaos-in-flight groups old-backlog keys in-flight caps caps-of-hosts overload starvation fairness bulk export redrives isolation any-host shares sick-shard take-over rolling rotation revocation reload dedup lease-ends long-life fuzz front-door connections bench bench-dedup bench-protected bench-spark spark-exact peers bench-peers scale compiled test-compiled image console-test locks audit sbom clean
BIN := .venv/bin
# What the tests found, for scripts/test_counts.py.
RESULTS := build/tests
SIDE_BY_SIDE = -n $${WORKERS:-4} --dist loadfile --no-loadscope-reorder
# Each worker of pytest rewrites all tests, and each process that a test starts compiles foqs, unless bytecode is kept.
unexport PYTHONDONTWRITEBYTECODE

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## .venv with everything, and a MySQL server when there is none; seconds when repeated
	@scripts/setup.sh

demo: setup ## the queue at work on this machine, from nothing to numbers
	@$(BIN)/python -m loadtest.demo

demo-spark: setup spark ## a bulk enqueue from PySpark with keys, a worker killed on the way, each row there once
	@$(BIN)/python -m loadtest.spark.demo

test: setup test-tools spark checks ## checks, and the tests that find a wrong change fast: make test WORKERS=N
	@mkdir -p $(RESULTS)
	$(BIN)/pytest $(SIDE_BY_SIDE) -m "not deep and not slow and not alone" --junit-xml $(RESULTS)/test.xml

test-deep: setup test-tools spark ## tests that take longer, or are many of a kind: make test-deep WORKERS=N
	@mkdir -p $(RESULTS); failed=0; \
	$(BIN)/pytest $(SIDE_BY_SIDE) -m "deep and not slow and not alone" --junit-xml $(RESULTS)/test-deep.xml || failed=1; \
	$(BIN)/pytest -n 2 -m "alone and not slow" --junit-xml $(RESULTS)/test-deep-alone.xml tests/integration tests/e2e || failed=1; \
	exit $$failed

test-slow: setup test-tools spark ## all other tests, which are proofs of minutes: make test-slow WORKERS=N
	@mkdir -p $(RESULTS); failed=0; \
	$(BIN)/pytest $(SIDE_BY_SIDE) -m "slow and not alone" --junit-xml $(RESULTS)/test-slow.xml || failed=1; \
	$(BIN)/pytest -n 2 -m "slow and alone" --junit-xml $(RESULTS)/test-slow-alone.xml tests/integration tests/e2e || failed=1; \
	exit $$failed

# They need one core each, and so does the first compiling of the tests, which the workers would do each by itself.
checks: setup
	@$(MAKE) --no-print-directory --jobs 2 --output-sync --old-file setup types lint imports build/bytecode

build/bytecode:
	@mkdir -p build; $(BIN)/pytest --collect-only --quiet > /dev/null && touch $@

lint: setup ## ruff: rules and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: setup ## mypy --strict
	$(BIN)/mypy

imports: setup ## import-linter: the layers
	$(BIN)/lint-imports

unit: setup spark ## only the tests of make test that need no database
	$(BIN)/pytest $(SIDE_BY_SIDE) -m "not database and not deep and not slow"

test-mysql: setup test-tools spark ## the database tests against the server that FOQS_TEST_MYSQLD names
	@test -n "$$FOQS_TEST_MYSQLD" || { echo "error: FOQS_TEST_MYSQLD must name a mysqld or mariadbd" >&2; exit 2; }
	$(BIN)/pytest -m database

compiled: setup ## a wheel with the host's hot modules compiled to C, and a copy of this tree with them
	@scripts/compiled.sh

test-compiled: setup test-tools spark compiled ## the tests on the compiled modules
	@failed=0; cd build/compiled; export PYTHONPATH=.; \
	.venv/bin/pytest $(SIDE_BY_SIDE) -m "not interpreted and not alone" || failed=1; \
	.venv/bin/pytest -n 2 -m "not interpreted and alone" tests/integration tests/e2e || failed=1; \
	exit $$failed

sim: setup ## the whole host in virtual time with faults: make sim SEEDS=N
	@$(BIN)/python -m tests.sim --seeds $${SEEDS:-2000} --keep-going

sim-clusters: setup ## whole clusters of it, in parts: it goes on where it was broken off: make sim-clusters SEEDS=N
	@$(BIN)/python -m tests.sim.parts --seeds $${SEEDS:-100000}

sim-serial: setup ## the same of one host with serial topics: make sim-serial SEEDS=N
	@$(BIN)/python -m tests.sim --serial --load-s 1.2 --seeds $${SEEDS:-500} --keep-going

sim-unique: setup ## the same with dedup ids that are taken as long as their items live: make sim-unique SEEDS=N
	@$(BIN)/python -m tests.sim --unique --load-s 1 --seeds $${SEEDS:-500} --keep-going

sim-in-flight: setup ## the same with limits of items in flight: make sim-in-flight SEEDS=N
	@$(BIN)/python -m tests.sim --in-flight --load-s 0.5 --seeds $${SEEDS:-2000} --keep-going

sim-permits: setup ## only the books of permits behind these limits, step by step: make sim-permits SEEDS=N
	@$(BIN)/python -m tests.sim --permits --seeds $${SEEDS:-5000} --keep-going

sim-aging: setup ## clusters with a topic whose items age while hosts are killed: make sim-aging SEEDS=N
	@$(BIN)/python -m tests.sim --aging --seeds $${SEEDS:-100} --keep-going

sim-gates: setup ## clusters whose slots move with items of serial topics: make sim-gates SEEDS=N
	@$(BIN)/python -m tests.sim --gates --seeds $${SEEDS:-300} --keep-going

sim-depths: setup ## clusters that keep the depth of a topic while hosts are killed: make sim-depths SEEDS=N
	@$(BIN)/python -m tests.sim --depths --seeds $${SEEDS:-100} --keep-going

sim-bulk: setup ## clusters that do bulk jobs while hosts are killed: make sim-bulk SEEDS=N
	@$(BIN)/python -m tests.sim --bulk --seeds $${SEEDS:-300} --keep-going

power: setup ## the power of a MySQL server cut under load: make power CUTS=N (as root, for the mounts)
	@$(BIN)/python -m loadtest.power --cuts $${CUTS:-100}

chaos: setup ## faults of all kinds on one host, or HOSTS that share shards: make chaos MINUTES=M SEED=S HOSTS=N SERVERS=M (as root)
	@$(BIN)/python -m loadtest.chaos --minutes $${MINUTES:-2} --seed $${SEED:-1} --hosts $${HOSTS:-1} --servers $${SERVERS:-2}

chaos-order: setup ## serial topics and ordering keys over HOSTS, whose slots move while hosts and servers fail: make chaos-order ITEMS=N RATE=R
	@$(BIN)/python -m loadtest.chaos --work order --items $${ITEMS:-100000} --items-per-second $${RATE:-0} --seed $${SEED:-1} --hosts $${HOSTS:-2} --servers $${SERVERS:-2}

chaos-groups: setup ## items of consumer groups while hosts are killed, a kill every GAP seconds: make chaos-groups ITEMS=N RATE=R GAP=S
	@$(BIN)/python -m loadtest.chaos --work groups --items $${ITEMS:-100000} --items-per-second $${RATE:-0} --gap-seconds $${GAP:-15} --seed $${SEED:-1} --hosts $${HOSTS:-2} --servers $${SERVERS:-2}

chaos-in-flight: setup ## topics with a limit of items in flight over hosts that fail: make chaos-in-flight ITEMS=N
	@$(BIN)/python -m loadtest.chaos --work in-flight --items $${ITEMS:-50000} --seed $${SEED:-1} --hosts $${HOSTS:-2} --servers $${SERVERS:-2}

old-backlog: setup ## what the whole life of an item costs that lay in a backlog for some seconds
	@$(BIN)/python -m loadtest.stress old-backlog --json build/stress/old-backlog.json

groups: setup ## what a copy for a consumer group costs next to a plain item, and a group that nobody reads: make groups BACKLOG=N
	@$(BIN)/python -m loadtest.stress groups --backlog $${BACKLOG:-1000000} --json build/stress/groups.json

keys: setup ## latencies beside very many ordering keys and beside a blocked one, and the rate of one key: make keys KEYS=N
	@$(BIN)/python -m loadtest.stress keys --keys $${KEYS:-200000} --json build/stress/keys.json

in-flight: setup ## topics with at most four items in flight over 2 hosts, next to topics without a limit: make in-flight TOPICS=N
	@$(BIN)/python -m loadtest.stress in-flight --topics $${TOPICS:-3000} --json build/stress/in-flight.json

overload: setup ## three times as much as the host can do, for five minutes: make overload MINUTES=M
	@$(BIN)/python -m loadtest.stress overload --minutes $${MINUTES:-5} --json build/stress/overload.json

bulk: setup ## interactive calls beside a bulk load of the same namespace from the same address
	@$(BIN)/python -m loadtest.stress bulk --rounds $${ROUNDS:-3} --json build/stress/bulk.json

export: setup ## deliveries at rest and beside an export of a million items, by turns: make export ITEMS=N
	@$(BIN)/python -m loadtest.stress export --items $${ITEMS:-1000000} --rounds $${ROUNDS:-5} --json build/stress/export.json

redrives: setup ## a redrive of a million dead letters by their errors, over two kills, and others beside it: make redrives ITEMS=N
	@mkdir -p build/stress
	@$(BIN)/python -m loadtest.stress redrives --items $${ITEMS:-1000000} --rounds $${ROUNDS:-5} --json build/stress/redrives.json

caps: setup ## thousands of topics with a cap each, and very many that wait for theirs
	@$(BIN)/python -m loadtest.stress caps --json build/stress/caps.json

caps-of-hosts: setup ## the same over 2 hosts of one cluster
	@$(BIN)/python -m loadtest.stress caps --hosts 2 --json build/stress/caps-of-hosts.json

isolation: setup ## a tenant next to one that sends five times its quota, and next to one that reads all it can
	@$(BIN)/python -m loadtest.stress isolation --json build/stress/isolation.json
	@$(BIN)/python -m loadtest.stress reading --json build/stress/reading.json
	@$(BIN)/python -m loadtest.stress loop-holds --json build/stress/loop-holds.json

shares: setup ## a topic with a million items beside others on two hosts, each by its weight: make shares HOSTS=N
	@$(BIN)/python -m loadtest.stress shares --hosts $${HOSTS:-2} --json build/stress/shares.json

any-host: setup ## four hosts: an item anywhere to a consumer that waits on any other, and what a hop costs: make any-host TRIALS=N
	@$(BIN)/python -m loadtest.stress any-host --trials $${TRIALS:-1000} --json build/stress/any-host.json

sick-shard: setup ## one of four servers frozen, killed, slow, full (the last as root, for the mount)
	@$(BIN)/python -m loadtest.stress sick-shard --json build/stress/sick-shard.json

take-over: setup ## a host with 90,000 leases killed and stopped, and how soon another one delivers: make take-over ROUNDS=N
	@$(BIN)/python -m loadtest.stress take-over --rounds $${ROUNDS:-20} --json build/stress/take-over.json

rolling: setup ## four hosts restarted in turn under load, 10,000 leases on each of 8 shards: make rolling ROUNDS=N
	@$(BIN)/python -m loadtest.stress rolling --rounds $${ROUNDS:-1} --json build/stress/rolling.json

revocation: setup ## three hosts under load, and how soon all refuse a token that was revoked: make revocation TIMES=N
	@$(BIN)/python -m loadtest.stress revocation --times $${TIMES:-100} --json build/stress/revocation.json

reload: setup ## two hosts with TLS under load, their certificates replaced again and again: make reload TIMES=N
	@$(BIN)/python -m loadtest.stress reload --times $${TIMES:-100} --json build/stress/reload.json

rotation: setup ## the secret of two hosts replaced ten times under load of clients that repeat nothing: make rotation ROTATIONS=N
	@$(BIN)/python -m loadtest.stress rotation --rotations $${ROTATIONS:-10} --json build/stress/rotation.json

dedup: setup ## exactly-once enqueue through kill -9, and what a window full of ids costs: make dedup IDS=N WINDOW_IDS=M
	@$(BIN)/python -m loadtest.stress dedup --ids $${IDS:-1000000} --json build/stress/dedup.json
	@$(BIN)/python -m loadtest.stress dedup-window --ids $${WINDOW_IDS:-1000000} --json build/stress/dedup-window.json

bench-dedup: setup ## what dedup ids and an event log of all items cost, each next to W3 without, by turns
	@$(BIN)/python -m loadtest.bench run w3-ids w3-ids-spread w3-ids-ungrouped w3-events --quick --out build/bench-dedup

starvation: setup ## nine urgent items for each other one, more than is taken, in a topic that ages and in a strict one: make starvation MINUTES=M
	@$(BIN)/python -m loadtest.stress starvation --minutes $${MINUTES:-5} --json build/stress/starvation.json

fairness: setup ## a customer with very many items beside a hundred with few, in one topic with fairness keys
	@$(BIN)/python -m loadtest.stress fairness --json build/stress/fairness.json

lease-ends: setup ## 150,000 leases of a shard that end at once, and how soon all items are ready again: make lease-ends ROUNDS=N
	@$(BIN)/python -m loadtest.stress lease-ends --rounds $${ROUNDS:-3} --json build/stress/lease-ends.json

long-life: setup ## hours of mixed load, the purge blocked in the middle: make long-life MINUTES=M
	@$(BIN)/python -m loadtest.stress long-life --minutes $${MINUTES:-120} --json build/stress/long-life.json

fuzz: setup ## hostile bytes, mutated and led by coverage, on the frame path and a live port: make fuzz FRAMES=N SEED=S
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	@$(BIN)/python -m loadtest.fuzz.frames --frames $${FRAMES:-1000000} --seed $${SEED:-1}
	@$(BIN)/python -m loadtest.fuzz.frames --frames $${FRAMES:-1000000} --seed $${SEED:-1} --guided
	@$(BIN)/python -m loadtest.fuzz.port --seed $${SEED:-1}

front-door: setup ## worst inputs and floods against a host: its event loop, its memory, and a good client's p99
	@$(BIN)/python -m loadtest.fuzz.floods $${OPTIONS:-}

connections: setup ## 10,000 idle connections, plain and by TLS: what each costs a host of memory
	@$(BIN)/python -m loadtest.fuzz.connections --json build/stress/connections.json

bench: setup ## throughput and latency of foqs on this machine
	@$(BIN)/python -m loadtest.bench run w1 w2 w3 w4 w5 w6 --quick --out build/bench

bench-protected: setup ## what enforced access costs, and TLS with it: pairs of runs next to foqs without
	@$(BIN)/python -m loadtest.bench pairs w1 w3 w4 few --with foqs-enforced --together --json build/pairs/enforced.json
	@$(BIN)/python -m loadtest.bench pairs w1 w3 w4 --with foqs-protected --together --json build/pairs/protected.json
	@$(BIN)/python -m loadtest.bench pairs lone --with foqs-protected --json build/pairs/lone.json

peers: setup ## the queues that foqs is measured against: their servers (Debian's packages, as root) and clients
	@scripts/peers.sh

bench-peers: setup ## the same next to every other queue that is installed (make peers installs them)
	@$(BIN)/python -m loadtest.bench run w1 w3 w4 w5 w6 --quick --peer all --out build/bench-peers $${OPTIONS:-}

scale: setup ## what more hosts and more shards cost
	@$(BIN)/python -m loadtest.bench scale --out build/scale

bench-spark: setup spark ## rows per second from PySpark next to plain clients with the same rows, with and without keys
	@$(BIN)/python -m loadtest.spark.bench $${OPTIONS:-}

spark-exact: setup spark ## a million rows through a Spark cluster that meets every failure: each there once: make spark-exact ROWS=N
	@$(BIN)/python -m loadtest.spark.exact --rows $${ROWS:-1000000}

image: setup ## the container image in build/image/foqs.tar, run once; needs root and the network, and no registry
	@scripts/image.sh

console-test: setup test-tools ## the console: pages in Chromium, its times and memory, and a host's cost, with TOPICS topics: make console-test TOPICS=N
	@mkdir -p build/stress
	$(BIN)/pytest -n 0 tests/e2e/test_console_browser.py
	@$(BIN)/python -m loadtest.console --topics $${TOPICS:-100000} --json build/stress/console.json

locks: setup ## requirements/*.lock anew, with the newest versions that pyproject.toml allows; then `make audit`
	@scripts/audit-tools.sh
	@$(BIN)/python -m scripts.lock_files

audit: setup ## security/audit.json: what is known of the packages in the locks; needs the network
	@scripts/audit-tools.sh
	@$(BIN)/python -m scripts.audit

sbom: setup ## bills of materials of the locks in dist/sbom, as CycloneDX
	@scripts/audit-tools.sh
	@$(BIN)/python -m scripts.sbom

spark: # PySpark and a Java runtime
	@scripts/spark.sh

test-tools: # Thrift, C++ and Node, for the tests of other languages, and ZooKeeper
	@scripts/test-tools.sh

clean: ## remove all that was made here, the data of `foqs dev` excepted
	rm -rf .venv build dist tests/e2e/node/node_modules .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
