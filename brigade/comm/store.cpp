#include "brigade/comm/store.h"

#include <fmt/format.h>

#include <functional>
#include <optional>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/comm/start/answer_in_time.h"
#include "brigade/comm/start/c10d_store.h"
#include "brigade/launch/network.h"

namespace brigade {
namespace {

// From 2.4 on libtorch serves its store by libuv unless told otherwise, but not
// every build has libuv (Debian 13's does not). Clients of either kind work
// with both.
template <typename Options>
void avoid_libuv(Options& options) {
  if constexpr (requires { options.useLibUV; })
    options.useLibUV = false;
}

// A libtorch with this option already numbers requests in the new way.
template <typename Options>
constexpr bool has_libuv_option() {
  return requires(Options options) {
    options.useLibUV;
  };
}

using C10dStorePtr = c10::intrusive_ptr<c10d::Store>;

// A server in another process, which may accept requests and never answer one.
struct RemoteServer {
  std::string address;                   // for messages
  std::chrono::milliseconds timeout{0};  // of one request; 0: our own server
};

// c10d's own waits for a key end first, and their errors say more.
constexpr std::chrono::seconds kKeyGrace{1};
// The same for connections: c10d sleeps between its tries.
constexpr std::chrono::seconds kConnectionGrace{10};

[[noreturn]] void throw_unanswered(
    const std::string& what,
    const RemoteServer& server,
    std::chrono::milliseconds waited) {
  throw CommError(fmt::format(
      "[store] {}: {} did not answer within {} s; rank 0 was stopped, or "
      "another program listens there: check MASTER_ADDR and MASTER_PORT",
      what,
      server.address,
      std::chrono::duration_cast<std::chrono::seconds>(waited).count()));
}

[[noreturn]] void throw_unconnected(
    const RemoteServer& server,
    std::chrono::milliseconds waited,
    const char* why) {
  throw CommError(fmt::format(
      "[store] host {} could not connect to {} within {} s{}; rank 0 should "
      "listen there: look for its error, and check MASTER_ADDR, MASTER_PORT "
      "and firewalls",
      host_name(),
      server.address,
      std::chrono::duration_cast<std::chrono::seconds>(waited).count(),
      why));
}

class C10dStore : public Store {
 public:
  C10dStore(C10dStorePtr store, RemoteServer server)
      : store_(std::move(store)), server_(std::move(server)) {}

  void set(const std::string& key, const std::string& value) override {
    ask<bool>(
        [key, bytes = std::vector<uint8_t>(value.begin(), value.end())](
            c10d::Store& store) {
          store.set(key, bytes);
          return true;
        },
        fmt::format("cannot set '{}'", key));
  }

  std::string get(const std::string& key) override {
    const auto bytes = ask<std::vector<uint8_t>>(
        [key](c10d::Store& store) { return store.get(key); },
        fmt::format("no rank set '{}' in time", key),
        kKeyGrace);
    return {bytes.begin(), bytes.end()};
  }

  bool contains(const std::string& key) override {
    return ask<bool>(
        [key](c10d::Store& store) { return store.check({key}); },
        fmt::format("cannot look up '{}'", key));
  }

  StorePtr with_prefix(const std::string& prefix) override {
    return std::make_shared<C10dStore>(
        c10::make_intrusive<c10d::PrefixStore>(prefix, store_), server_);
  }

  std::string address() const override { return server_.address; }

  const C10dStorePtr& inner() const { return store_; }

 private:
  template <typename Answer>
  Answer ask(
      std::function<Answer(c10d::Store&)> request,
      const std::string& what,
      std::chrono::milliseconds grace = {}) const {
    try {
      if (server_.timeout.count() == 0)
        return request(*store_);
      auto answer = answer_in_time<Answer>(
          [store = store_, request = std::move(request)] {
            return request(*store);
          },
          server_.timeout + grace);
      if (answer)
        return *std::move(answer);
    } catch (const std::exception& error) {
      throw CommError(fmt::format("[store] {}: {}", what, error.what()));
    }
    throw_unanswered(what, server_, server_.timeout + grace);
  }

  C10dStorePtr store_;
  RemoteServer server_;
};

StorePtr wrap(
    C10dStorePtr store,
    std::chrono::milliseconds timeout,
    RemoteServer server = {}) {
  store->setTimeout(timeout);
  return std::make_shared<C10dStore>(std::move(store), std::move(server));
}

// A libtorch whose store takes a socket that listens already.
template <typename Options>
constexpr bool has_listen_option() {
  return requires(Options options) {
    options.masterListenFd;
  };
}

// Makes the store that these options describe listen on loopback alone.
template <typename Options>
void bind_to_loopback(Options& options, const std::string& host) {
  if constexpr (has_listen_option<Options>()) {
    // The store owns the socket, and closes it at its end.
    options.masterListenFd = listen_on_loopback(host, options.port);
  }
}

}  // namespace

c10::intrusive_ptr<c10d::Store> c10d_store(const StorePtr& store) {
  const auto* wrapper = dynamic_cast<const C10dStore*>(store.get());
  return wrapper != nullptr ? wrapper->inner() : make_foreign_store(store);
}

StorePtr make_in_process_store(std::chrono::milliseconds timeout) {
  return wrap(c10::make_intrusive<c10d::HashStore>(), timeout);
}

StorePtr make_file_store(
    const std::filesystem::path& path,
    int world_size,
    std::chrono::milliseconds timeout) {
  return wrap(
      c10::make_intrusive<c10d::FileStore>(path.string(), world_size), timeout);
}

bool can_bind_store_to_loopback() {
  return has_listen_option<c10d::TCPStoreOptions>();
}

bool can_use_agent_store() {
  return has_libuv_option<c10d::TCPStoreOptions>();
}

StorePtr make_tcp_store(
    const std::string& host,
    int port,
    bool serve,
    int world_size,
    std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.isServer = serve;
  options.numWorkers = world_size;
  options.waitWorkers = false;
  options.timeout = timeout;
  avoid_libuv(options);
  if (serve && is_loopback_name(host))
    bind_to_loopback(options, host);
  RemoteServer server{.address = fmt::format("{}:{}", host, port)};
  if (!serve)
    server.timeout = timeout;
  const auto make = [host, options]() -> C10dStorePtr {
    return c10::make_intrusive<c10d::TCPStore>(host, options);
  };
  try {
    if (serve)
      return wrap(make(), timeout, server);
    // The constructor of later libtorch (2.15) sends the server a request at
    // once, and waits.
    auto store = answer_in_time<C10dStorePtr>(make, timeout + kConnectionGrace);
    if (store)
      return wrap(*std::move(store), timeout, server);
  } catch (const std::exception& error) {
    const std::string reason = error.what();
    const std::string first_line = reason.substr(0, reason.find('\n'));
    if (serve)
      throw CommError(fmt::format(
          "[store] rank 0 on host {} cannot listen on port {}: {}; set "
          "MASTER_PORT to a free port",
          host_name(),
          port,
          first_line));
    throw_unconnected(server, timeout, "");
  }
  // c10d may go on trying beyond its timeout.
  throw_unconnected(
      server, timeout + kConnectionGrace, ", where nothing answered");
}

}  // namespace brigade
