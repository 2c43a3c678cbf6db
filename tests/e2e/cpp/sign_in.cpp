// A generated client over TLS that signs in with a token.
// Usage: sign_in HOST PORT CA_FILE TOKEN_FILE NAMESPACE
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>

#include <thrift/protocol/TBinaryProtocol.h>
#include <thrift/transport/TBufferTransports.h>
#include <thrift/transport/TSSLSocket.h>

#include "Foqs.h"

using namespace apache::thrift;

namespace {

struct Connection {
  Connection(const std::string& host, int port, const std::string& ca_file) {
    factory = std::make_shared<transport::TSSLSocketFactory>();
    factory->loadTrustedCertificates(ca_file.c_str());
    factory->authenticate(true);
    auto socket = factory->createSocket(host, port);
    socket->setConnTimeout(5'000);
    socket->setSendTimeout(10'000);
    socket->setRecvTimeout(15'000);
    frames = std::make_shared<transport::TFramedTransport>(socket);
    client = std::make_unique<foqs::FoqsClient>(std::make_shared<protocol::TBinaryProtocol>(frames));
    frames->open();
  }

  foqs::Identity sign_in(const std::string& token) {
    foqs::AuthenticateRequest request;
    request.token = token;
    foqs::Identity me;
    client->authenticate(me, request);
    return me;
  }

  foqs::EnqueueResponse enqueue(const std::string& name) {
    foqs::NewItem item;
    item.topic = "cpp";
    item.payload = "hello";
    foqs::EnqueueRequest request;
    request.namespace_name = name;
    request.items = {item};
    foqs::EnqueueResponse stored;
    client->enqueue(stored, request);
    return stored;
  }

  /** The payload of the copy that a consumer group has, which is acked; empty without one. */
  std::string taken_by(const std::string& group, const std::string& name) {
    foqs::TopicDemand demand;
    demand.topic = "cpp";
    demand.count = 1;
    demand.__set_group(group);
    foqs::DequeueRequest request;
    request.namespace_name = name;
    request.topics = {demand};
    request.wait_ms = 5'000;
    foqs::DequeueResponse got;
    client->dequeue(got, request);
    if (got.items.empty() || got.items[0].group != group) return "";
    foqs::AckRequest ack;
    ack.namespace_name = name;
    ack.receipts = {got.items[0].receipt};
    foqs::BatchResponse acked;
    client->ack(acked, ack);
    return acked.errors.empty() ? got.items[0].payload : "";
  }

  std::shared_ptr<transport::TSSLSocketFactory> factory;
  std::shared_ptr<transport::TFramedTransport> frames;
  std::unique_ptr<foqs::FoqsClient> client;
};

void done(bool is_right, const std::string& what) {
  if (!is_right) {
    std::cerr << "failed: " << what << "\n";
    std::exit(1);
  }
  std::cout << "ok: " << what << "\n";
}

template <typename Call>
bool is_denied(Call call) {
  try {
    call();
  } catch (const foqs::FoqsError& error) {
    return error.code == foqs::ErrorCode::PERMISSION_DENIED;
  }
  return false;
}

}  // namespace

int main(int, char** arguments) {
  const std::string host = arguments[1], ca_file = arguments[3], name = arguments[5];
  const int port = std::atoi(arguments[2]);
  std::string token;
  std::ifstream(arguments[4]) >> token;
  try {
    bool is_refused = false;
    try {
      Connection wrong("127.0.0.1", port, ca_file);  // the certificate is for localhost alone
      wrong.enqueue(name);
    } catch (const transport::TTransportException&) {
      is_refused = true;
    }
    done(is_refused, "a certificate of another name is refused");

    Connection unknown(host, port, ca_file);
    done(is_denied([&] { unknown.enqueue(name); }), "a caller without a token is refused");
    done(is_denied([&] { unknown.sign_in("foqs_wrong"); }), "a wrong token is refused");

    Connection known(host, port, ca_file);
    done(known.sign_in(token).principal == "mailer", "a caller with a token is known");
    done(known.enqueue(name).errors.empty(), "it does what its permissions say");
    done(known.taken_by("archive", name) == "hello", "a consumer group has a copy of the item");
    done(is_denied([&] { known.enqueue("other"); }), "and nothing else");
  } catch (const TException& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
