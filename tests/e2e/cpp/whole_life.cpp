// The whole life of items by a client that Apache Thrift generated: framed binary over TCP.
// Usage: whole_life PORT NAMESPACE
#include <chrono>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <thrift/TApplicationException.h>
#include <thrift/protocol/TBinaryProtocol.h>
#include <thrift/transport/TBufferTransports.h>
#include <thrift/transport/TSocket.h>

#include "Foqs.h"
#include "FoqsAdmin.h"

using namespace foqs;
using apache::thrift::TApplicationException;
using apache::thrift::protocol::TBinaryProtocol;
using apache::thrift::transport::TBufferedTransport;
using apache::thrift::transport::TFramedTransport;
using apache::thrift::transport::TSocket;

namespace {

constexpr int kPatienceMs = 20'000;
int port;
std::string namespace_name;

// Of the caller, so that a failure says where.
#define CHECK(condition) check((condition), __LINE__, #condition)

void check(bool holds, int line, const char* condition) {
  if (!holds) throw std::logic_error("line " + std::to_string(line) + ": not so: " + condition);
}

template <class Client, class Transport>
std::unique_ptr<Client> connect() {
  auto socket = std::make_shared<TSocket>("127.0.0.1", port);
  socket->setConnTimeout(kPatienceMs);
  socket->setRecvTimeout(kPatienceMs);
  socket->setSendTimeout(kPatienceMs);
  auto transport = std::make_shared<Transport>(socket);
  transport->open();
  return std::make_unique<Client>(std::make_shared<TBinaryProtocol>(transport));
}

FoqsClient& queue() {
  static const auto client = connect<FoqsClient, TFramedTransport>();
  return *client;
}

int64_t now_ms() {
  using namespace std::chrono;
  return duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count();
}

NewItem item(const std::string& topic, const std::string& payload = "x") {
  NewItem made;
  made.topic = topic;
  made.payload = payload;
  return made;
}

EnqueueResponse enqueue(const std::vector<NewItem>& items) {
  EnqueueRequest request;
  request.namespace_name = namespace_name;
  request.items = items;
  EnqueueResponse response;
  queue().enqueue(response, request);
  return response;
}

std::vector<Item> dequeue(const std::string& topic, int count, int64_t wait_ms = 5'000, int64_t lease_ms = 0) {
  TopicDemand demand;
  demand.topic = topic;
  demand.count = count;
  DequeueRequest request;
  request.namespace_name = namespace_name;
  request.topics = {demand};
  request.wait_ms = wait_ms;
  if (lease_ms != 0) request.__set_lease_ms(lease_ms);
  DequeueResponse response;
  queue().dequeue(response, request);
  return response.items;
}

Item one(const std::string& topic) {
  const auto items = dequeue(topic, 1);
  CHECK(items.size() == 1);
  return items[0];
}

BatchResponse ack(const std::vector<std::string>& receipts) {
  AckRequest request;
  request.namespace_name = namespace_name;
  request.receipts = receipts;
  BatchResponse response;
  queue().ack(response, request);
  return response;
}

BatchResponse nack(const Nack& nack) {
  NackRequest request;
  request.namespace_name = namespace_name;
  request.nacks = {nack};
  BatchResponse response;
  queue().nack(response, request);
  return response;
}

BatchResponse extend(const std::string& receipt, int64_t lease_ms) {
  ExtendRequest request;
  request.namespace_name = namespace_name;
  request.receipts = {receipt};
  request.lease_ms = lease_ms;
  BatchResponse response;
  queue().extendLease(response, request);
  return response;
}

ErrorCode::type code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const FoqsError& error) {
    CHECK(error.message.size() > 10);
    return error.code;
  }
  throw std::logic_error("the call was not refused");
}

void every_field() {
  std::string every_byte;
  for (int value = 0; value < 256; ++value) every_byte.push_back(static_cast<char>(value));
  const int64_t before_ms = now_ms();
  NewItem stored = item("field \xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", every_byte);
  stored.priority = INT32_MIN;
  stored.__set_deliver_after_ms(before_ms - 5'000);
  stored.__set_ttl_ms(60'000);
  stored.__set_lease_ms(45'000);
  stored.__set_metadata(every_byte);
  stored.__set_delivery(DeliveryPolicy::AT_LEAST_ONCE);
  const EnqueueResponse response = enqueue({stored});
  CHECK(response.errors.empty() && response.duplicates.empty());
  const Item got = one(stored.topic);
  CHECK(got.id == response.ids.at(0));
  CHECK(got.topic == stored.topic);
  CHECK(got.priority == INT32_MIN);
  CHECK(got.payload == every_byte && got.metadata == every_byte);
  CHECK(got.attempt == 1);
  CHECK(got.enqueued_at_ms >= before_ms - 1'000 && got.deliver_after_ms == got.enqueued_at_ms);
  const int64_t lease_ms = got.lease_expires_at_ms - before_ms;
  CHECK(lease_ms > 40'000 && lease_ms < 60'000);
  CHECK(ack({got.receipt}).errors.empty());
}

void most_urgent_first() {
  std::vector<NewItem> items(3, item("order"));
  items[0].priority = 3;
  items[1].priority = -1;
  items[2].priority = 2;
  CHECK(enqueue(items).errors.empty());
  std::vector<std::string> receipts;
  std::vector<int32_t> priorities;
  for (const Item& got : dequeue("order", 3)) {
    priorities.push_back(got.priority);
    receipts.push_back(got.receipt);
  }
  CHECK((priorities == std::vector<int32_t>{-1, 2, 3}));
  CHECK(ack(receipts).errors.empty());
}

void items_of_one_key_come_one_at_a_time() {
  std::vector<NewItem> items{item("keys", "0"), item("keys", "1")};
  for (NewItem& each : items) each.__set_ordering_key("k");
  CHECK(enqueue(items).errors.empty());
  for (const std::string payload : {"0", "1"}) {
    const auto got = dequeue("keys", 2);
    CHECK(got.size() == 1 && got[0].payload == payload && got[0].ordering_key == "k");
    CHECK(ack({got[0].receipt}).errors.empty());
  }
}

void one_bad_item_fails_alone() {
  NewItem refused = item("batch");
  refused.__set_dedup_id(std::string(256, 'd'));
  const EnqueueResponse response = enqueue({item("batch"), item(""), refused, item("batch", std::string(20'000, 'x'))});
  CHECK(!response.ids.at(0).empty() && response.ids.at(1).empty());
  CHECK(response.errors.size() == 3);
  CHECK(response.errors.at(1).code == ErrorCode::INVALID_ARGUMENT);
  CHECK(response.errors.at(2).code == ErrorCode::INVALID_ARGUMENT);
  CHECK(response.errors.at(3).code == ErrorCode::TOO_LARGE);
  CHECK(ack({one("batch").receipt}).errors.empty());
}

void of_one_dedup_id_the_first_is_made() {
  NewItem first = item("once"), other = item("once");
  first.__set_dedup_id("order-7");
  other.__set_dedup_id("order-8");
  const EnqueueResponse response = enqueue({first, other, first});
  CHECK(response.errors.empty() && response.ids.at(2) == response.ids.at(0));
  CHECK(response.duplicates == std::vector<int32_t>{2});
  CHECK(ack({one("once").receipt, one("once").receipt}).errors.empty());
  const EnqueueResponse again = enqueue({first});
  CHECK(again.ids.at(0) == response.ids.at(0) && again.duplicates == std::vector<int32_t>{0});
}

uint32_t crc32(const std::string& text) {
  uint32_t value = ~0u;
  for (const unsigned char byte : text) {
    value ^= byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ (0xedb88320u & -(value & 1u));
  }
  return ~value;
}

void ids_go_where_the_shard_map_says() {
  const std::string name = namespace_name + "-wide-cpp";
  CreateNamespaceRequest creation;
  creation.name = name;
  NamespaceSettings settings;
  settings.__set_key_spread(4);
  creation.__set_settings(settings);
  Namespace created;
  connect<FoqsAdminClient, TFramedTransport>()->createNamespace(created, creation);
  ShardMapRequest asked;
  asked.__set_namespace_name(name);
  ShardMap told;
  queue().getShardMap(told, asked);
  CHECK(told.shard_by_slot.size() == 1024 && told.key_spread == 4 && told.addresses.size() == 4);
  EnqueueRequest request;
  request.namespace_name = name;
  for (int number = 0; number < 40; ++number) {
    request.items.push_back(item("wide"));
    request.items.back().__set_dedup_id("\xc3\xa4-" + std::to_string(number));
  }
  EnqueueResponse response;
  queue().enqueue(response, request);
  CHECK(response.errors.empty());
  std::set<int32_t> shards;
  for (size_t at = 0; at < request.items.size(); ++at) {
    const int32_t shard = told.shard_by_slot.at((crc32(name) % 1024 + crc32(request.items[at].dedup_id) % 4) % 1024);
    CHECK(std::stoi(response.ids.at(at), nullptr, 16) == shard);
    shards.insert(shard);
  }
  CHECK(shards.size() == 4);
}

void delay_and_wait() {
  const int64_t before_ms = now_ms();
  CHECK(dequeue("nothing", 1, 300).empty());
  NewItem delayed = item("delay");
  delayed.__set_delay_ms(400);
  CHECK(enqueue({delayed}).errors.empty());
  const Item got = one("delay");
  CHECK(now_ms() - before_ms >= 699);
  CHECK(ack({got.receipt}).errors.empty());
}

void nack_and_release() {
  CHECK(enqueue({item("nack")}).errors.empty());
  const Item first = one("nack");
  Nack failed;
  failed.receipt = first.receipt;
  failed.delay_ms = 100;
  failed.__set_metadata("new");
  CHECK(nack(failed).errors.empty());
  const Item second = one("nack");
  CHECK(second.id == first.id && second.attempt == 2 && second.metadata == "new");
  Nack released;
  released.receipt = second.receipt;
  released.release = true;
  CHECK(nack(released).errors.empty());
  const Item third = one("nack");
  CHECK(third.attempt == 2);
  const BatchResponse acked = ack({first.receipt, third.receipt});
  CHECK(acked.errors.size() == 1 && acked.errors.at(0).code == ErrorCode::STALE_LEASE);
}

void extended_lease() {
  CHECK(enqueue({item("extend")}).errors.empty());
  const Item got = dequeue("extend", 1, 5'000, 1'000).at(0);
  CHECK(extend(got.receipt, 60'000).errors.empty());
  CHECK(dequeue("extend", 1, 2'500).empty());
  CHECK(ack({got.receipt}).errors.empty());
  CHECK(extend(got.receipt, 60'000).errors.at(0).code == ErrorCode::STALE_LEASE);
}

void dead_letter() {
  CHECK(enqueue({item("dead")}).errors.empty());
  Nack dead;
  dead.receipt = one("dead").receipt;
  dead.dead_letter = true;
  CHECK(nack(dead).errors.empty());
  const auto admin = connect<FoqsAdminClient, TFramedTransport>();
  ListDeadLettersRequest request;
  request.namespace_name = namespace_name;
  request.topic = "dead";
  StoredItemsResponse response;
  admin->listDeadLetters(response, request);
  CHECK(response.items.size() == 1 && response.items[0].state == ItemState::DEAD);
  HostStatus status;
  admin->getHostStatus(status, HostStatusRequest());
  CHECK(status.shards.size() == 4);
}

void errors() {
  const std::string right = std::exchange(namespace_name, "no such");
  const auto unknown = code_of([] { enqueue({item("x")}); });
  namespace_name = right;
  CHECK(unknown == ErrorCode::UNKNOWN_NAMESPACE);
  CHECK(code_of([] { dequeue("x", 0); }) == ErrorCode::INVALID_ARGUMENT);
  CHECK(ack({"not a receipt"}).errors.at(0).code == ErrorCode::INVALID_ARGUMENT);
  CHECK(dequeue("nothing", 1, 0).empty());
}

void without_frames() {
  const auto unframed = connect<FoqsClient, TBufferedTransport>();
  DequeueRequest request;
  DequeueResponse response;
  try {
    unframed->dequeue(response, request);
  } catch (const TApplicationException& error) {
    CHECK(std::string(error.what()).find("TFramedTransport") != std::string::npos);
    return;
  }
  throw std::logic_error("a call without a frame was answered");
}

}  // namespace

int main(int, char** arguments) {
  port = std::atoi(arguments[1]);
  namespace_name = arguments[2];
  const std::vector<std::pair<const char*, void (*)()>> steps = {
      {"an item keeps every field from enqueue to dequeue", every_field},
      {"the most urgent item comes first", most_urgent_first},
      {"items of one key come one at a time, in order", items_of_one_key_come_one_at_a_time},
      {"one bad item of a batch fails alone", one_bad_item_fails_alone},
      {"of items with one dedup id the first is made, and the others get its id", of_one_dedup_id_the_first_is_made},
      {"items with dedup ids are stored where the shard map says", ids_go_where_the_shard_map_says},
      {"a delayed item comes when it is due, and a dequeue waits as long as it was told", delay_and_wait},
      {"a nack brings an item back, and a release does not count", nack_and_release},
      {"an extended lease ends later", extended_lease},
      {"a dead letter is kept for the operator", dead_letter},
      {"a bad call gets a FoqsError with its code, and the connection serves on", errors},
      {"a client that forgot the framed transport is told so", without_frames},
  };
  for (const auto& [name, step] : steps) {
    try {
      step();
    } catch (const std::exception& error) {
      std::cerr << name << ": " << error.what() << std::endl;
      return 1;
    }
    std::cout << "ok: " << name << std::endl;
  }
  return 0;
}
