// A small key-value store for the rendezvous of ranks: through it the ranks of
// process groups find each other. Wraps c10d's stores, whose headers stay in
// comm/.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>

namespace brigade {

// A program may bring its own (over its scheduler's service, say). It is called
// from several threads at once, and get() of a key that another rank sets must
// return once it is there.
class Store {
 public:
  virtual ~Store() = default;
  // Replaces the key's value if it has one.
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Blocks until the key exists; CommError naming the key after the timeout.
  virtual std::string get(const std::string& key) = 0;
  // Does not block.
  virtual bool contains(const std::string& key) = 0;
  // The same store with every key behind "prefix/".
  virtual std::shared_ptr<Store> with_prefix(const std::string& prefix) = 0;
  // Its address, for messages: "10.0.0.1:29500". "": unknown.
  virtual std::string address() const { return ""; }
};
// Shared by the groups that are formed through it; null if there is one rank.
using StorePtr = std::shared_ptr<Store>;

// For ranks that are threads of one process, which share the returned object.
StorePtr make_in_process_store(std::chrono::milliseconds timeout);

// For ranks that share a file system. The file must not be left over from an
// earlier run. Opens no network port.
StorePtr make_file_store(
    const std::filesystem::path& path,
    int world_size,
    std::chrono::milliseconds timeout);

// Whether ranks on this libtorch can use the store that torchrun's agent
// serves. libtorch 1.13 cannot if the agent is of PyTorch 2.1 or later, whose
// stores number their requests differently: it would wait for answers that do
// not come.
bool can_use_agent_store();

// Whether a store that rank 0 serves at a loopback address can be reached only
// from this host. Older libtorch (1.13) listens on every network interface,
// whatever the address.
bool can_bind_store_to_loopback();

// For ranks on several hosts. Rank 0 serves unless torchrun's agent does.
// c10d's TCP store has no authentication, and listens on all interfaces unless
// `host` is loopback (can_bind_store_to_loopback()): use it inside a trusted
// network only. If a server accepts the connection and does not answer (another
// program, a stopped rank 0), this throws CommError after the timeout.
StorePtr make_tcp_store(
    const std::string& host,
    int port,
    bool serve,
    int world_size,
    std::chrono::milliseconds timeout);

}  // namespace brigade
