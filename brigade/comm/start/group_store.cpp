#include "brigade/comm/start/c10d_store.h"

#include <fmt/format.h>

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/base/parse_number.h"
#include "brigade/comm/start/packed_texts.h"

namespace brigade {
namespace {

// A key whose last part is a rank: "0/main/12" is rank 12's.
struct KeyOfRank {
  std::string prefix;  // "0/main/"
  int rank = 0;
};

std::optional<KeyOfRank> parse_key(const std::string& key, int size) {
  const size_t slash = key.rfind('/');
  const size_t begin = slash == std::string::npos ? 0 : slash + 1;
  const int rank = parse_number<int>(key.substr(begin)).value_or(-1);
  if (rank < 0 || rank >= size)
    return std::nullopt;
  return KeyOfRank{key.substr(0, begin), rank};
}

class GroupStore : public c10d::Store {
 public:
  GroupStore(c10::intrusive_ptr<c10d::Store> inner, int rank, int size)
      : c10d::Store(inner->getTimeout()),
        inner_(std::move(inner)),
        rank_(rank),
        size_(size) {}

  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    inner_->set(key, value);
  }

  std::vector<uint8_t> get(const std::string& key) override {
    const auto of_rank = parse_key(key, size_);
    if (!of_rank)
      return inner_->get(key);
    const std::string& value =
        values_of(of_rank->prefix)[static_cast<size_t>(of_rank->rank)];
    return {value.begin(), value.end()};
  }

  void wait(const std::vector<std::string>& keys) override {
    wait(keys, inner_->getTimeout());
  }

  // All ranks' values arrive together.
  void wait(
      const std::vector<std::string>& keys,
      const std::chrono::milliseconds& timeout) override {
    for (const std::string& key : keys) {
      if (const auto of_rank = parse_key(key, size_))
        values_of(of_rank->prefix);
      else
        inner_->wait({key}, timeout);
    }
  }

  int64_t add(const std::string& key, int64_t value) override {
    return inner_->add(key, value);
  }
  bool deleteKey(const std::string& key) override {
    return inner_->deleteKey(key);
  }
  bool check(const std::vector<std::string>& keys) override {
    return inner_->check(keys);
  }
  int64_t getNumKeys() override { return inner_->getNumKeys(); }

  // libtorch 2.14 calls this; old ones have no such function to override.
  // NOLINTNEXTLINE(modernize-use-override)
  c10::intrusive_ptr<c10d::Store> clone() {
    return c10::make_intrusive<GroupStore>(clone_of(inner_), rank_, size_);
  }

 private:
  template <typename StorePointer>
  static StorePointer clone_of(const StorePointer& store) {
    if constexpr (requires { store->clone(); })
      return store->clone();
    return store;
  }

  const std::vector<std::string>& values_of(const std::string& prefix) {
    const std::lock_guard lock(mutex_);
    auto& values = values_[prefix];
    if (!values.empty())
      return values;
    const std::string all = prefix + "all";
    if (rank_ == 0) {
      std::vector<std::string> gathered;
      for (int rank = 0; rank < size_; ++rank)
        gathered.push_back(text_of(prefix + std::to_string(rank)));
      const std::string packed = pack_texts(gathered);
      if (size_ > 1)
        inner_->set(all, std::vector<uint8_t>(packed.begin(), packed.end()));
      values = std::move(gathered);
    } else {
      values = unpack_texts(text_of(all));
    }
    if (values.size() != static_cast<size_t>(size_)) {
      throw CommError(fmt::format(
          "[store] key '{}' holds the addresses of {} ranks, but the group has "
          "{}: was the store used by another run?",
          all,
          values.size(),
          size_));
    }
    return values;
  }

  std::string text_of(const std::string& key) {
    const auto bytes = inner_->get(key);
    return {bytes.begin(), bytes.end()};
  }

  c10::intrusive_ptr<c10d::Store> inner_;
  int rank_;
  int size_;
  std::mutex mutex_;
  std::map<std::string, std::vector<std::string>> values_;  // by prefix
};

}  // namespace

c10::intrusive_ptr<c10d::Store>
make_group_store(c10::intrusive_ptr<c10d::Store> inner, int rank, int size) {
  return c10::make_intrusive<GroupStore>(std::move(inner), rank, size);
}

}  // namespace brigade
