// How the table of keys is written down: private to keys.cpp and
// distributed_keys.cpp.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "brigade/config/keys.h"
#include "brigade/config/values.h"

namespace brigade {

inline const ValueRule kAny{};

inline ValueRule at_least(double low) {
  return {.low = low};
}

// Declares the keys of one group.
template <class Group>
class GroupKeys {
 public:
  GroupKeys(
      std::vector<ConfigKey>& keys,
      std::string name,
      Group TrainConfig::*group)
      : keys_(keys), name_(std::move(name)), group_(group) {}

  template <class Value>
  ConfigKey& key(
      std::string name,
      Value Group::*member,
      ValueRule rule,
      std::string help) {
    const auto group = group_;
    rule.choices = ChoicesOf<Value>::texts();
    ConfigKey key;
    key.group = name_;
    key.name = std::move(name);
    key.type = TypeName<Value>::kName;
    key.range = rule.describe();
    key.help = std::move(help);
    key.is_text = key.type == "text";
    key.set = [group, member, rule](
                  TrainConfig& config, const nlohmann::json& value) {
      return read_value(value, rule, config.*group.*member);
    };
    key.get = [group, member](const TrainConfig& config) -> nlohmann::json {
      return write_value(config.*group.*member);
    };
    return keys_.emplace_back(std::move(key));
  }

 private:
  std::vector<ConfigKey>& keys_;
  std::string name_;
  Group TrainConfig::*group_;
};

// The keys of `distributed`, in the order of the docs.
void add_distributed(std::vector<ConfigKey>& keys);

}  // namespace brigade
