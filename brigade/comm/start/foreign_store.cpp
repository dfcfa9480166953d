#include "brigade/comm/start/c10d_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "brigade/base/error.h"

namespace brigade {
namespace {

class ForeignStore : public c10d::Store {
 public:
  explicit ForeignStore(StorePtr store) : store_(std::move(store)) {}

  // Called by libtorch since 2.9; older ones have no such function.
  // NOLINTNEXTLINE(modernize-use-override)
  virtual c10::intrusive_ptr<c10d::Store> clone() {
    return c10::make_intrusive<ForeignStore>(store_);
  }

  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    store_->set(key, {value.begin(), value.end()});
  }

  std::vector<uint8_t> get(const std::string& key) override {
    const std::string value = store_->get(key);
    return {value.begin(), value.end()};
  }

  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys)
      store_->get(key);
  }
  // A Store waits for its own timeout.
  void wait(
      const std::vector<std::string>& keys,
      const std::chrono::milliseconds& /*timeout*/) override {
    wait(keys);
  }

  bool check(const std::vector<std::string>& keys) override {
    return std::all_of(keys.begin(), keys.end(), [&](const std::string& key) {
      return store_->contains(key);
    });
  }

  int64_t add(const std::string& key, int64_t /*value*/) override {
    throw_missing("counters", key);
  }
  bool deleteKey(const std::string& key) override {
    throw_missing("deletion", key);
  }
  int64_t getNumKeys() override { throw_missing("a number of keys", ""); }

 private:
  [[noreturn]] static void throw_missing(
      const char* what,
      const std::string& key) {
    throw CommError(fmt::format(
        "[store] libtorch asks for {} (key '{}'), which a brigade::Store of "
        "the program's own does not have; use make_tcp_store() or "
        "make_file_store()",
        what,
        key));
  }

  StorePtr store_;
};

}  // namespace

c10::intrusive_ptr<c10d::Store> make_foreign_store(StorePtr store) {
  return c10::make_intrusive<ForeignStore>(std::move(store));
}

}  // namespace brigade
