#include "brigade/comm/store.h"

#include <fmt/format.h>

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/comm/c10d_store.h"
#include "brigade/comm/foreign_store.h"
#include "brigade/launch/network.h"

namespace brigade {
namespace {

// From 2.4 on libtorch's store is served by libuv unless told otherwise, which
// not every build has (Debian 13's lacks it). Clients of either kind fit.
template <typename Options>
void avoid_libuv(Options& options) {
  if constexpr (requires { options.useLibUV; })
    options.useLibUV = false;
}

// A libtorch with that option is past the change of the requests' numbers.
template <typename Options>
constexpr bool has_libuv_option() {
  return requires(Options options) {
    options.useLibUV;
  };
}

class C10dStore : public Store {
 public:
  explicit C10dStore(c10::intrusive_ptr<c10d::Store> store)
      : store_(std::move(store)) {}

  void set(const std::string& key, const std::string& value) override {
    try {
      store_->set(key, std::vector<uint8_t>(value.begin(), value.end()));
    } catch (const std::exception& error) {
      throw CommError(
          fmt::format("[store] cannot set '{}': {}", key, error.what()));
    }
  }

  std::string get(const std::string& key) override {
    try {
      const auto bytes = store_->get(key);
      return {bytes.begin(), bytes.end()};
    } catch (const std::exception& error) {
      throw CommError(fmt::format(
          "[store] no rank set '{}' in time: {}", key, error.what()));
    }
  }

  bool contains(const std::string& key) override {
    try {
      return store_->check({key});
    } catch (const std::exception& error) {
      throw CommError(
          fmt::format("[store] cannot look up '{}': {}", key, error.what()));
    }
  }

  StorePtr with_prefix(const std::string& prefix) override {
    return std::make_shared<C10dStore>(
        c10::make_intrusive<c10d::PrefixStore>(prefix, store_));
  }

  const c10::intrusive_ptr<c10d::Store>& inner() const { return store_; }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

StorePtr wrap(
    c10::intrusive_ptr<c10d::Store> store,
    std::chrono::milliseconds timeout) {
  store->setTimeout(timeout);
  return std::make_shared<C10dStore>(std::move(store));
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
  try {
    return wrap(c10::make_intrusive<c10d::TCPStore>(host, options), timeout);
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
    throw CommError(fmt::format(
        "[store] host {} could not connect to {}:{} within {} s, where rank 0 "
        "should listen; look for rank 0's error, and check MASTER_ADDR, "
        "MASTER_PORT and firewalls",
        host_name(),
        host,
        port,
        std::chrono::duration_cast<std::chrono::seconds>(timeout).count()));
  }
}

}  // namespace brigade
