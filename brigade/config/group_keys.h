// How the table of keys is written down: private to keys.cpp,
// distributed_keys.cpp and training_keys.cpp.
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

// Declares keys of one group of the JSON whose values are members of one
// struct, `of` the config: a generic lambda, for a config that may change and
// for one that may not.
template <class Of>
class GroupKeys {
 public:
  GroupKeys(std::vector<ConfigKey>& keys, std::string group, Of of)
      : keys_(keys), group_(std::move(group)), of_(of) {}

  // `resume` has no default: a new key must say what its change means.
  // `member`: of the struct, or of one that it derives from.
  template <class Value, class Struct>
  ConfigKey& key(
      std::string name,
      Value Struct::*member,
      ValueRule rule,
      Resume resume,
      std::string help) const {
    rule.choices = ChoicesOf<Value>::texts();
    if (rule.absent)
      rule.choices.insert(rule.choices.begin(), *rule.absent);
    ConfigKey key;
    key.group = group_;
    key.name = std::move(name);
    static_assert(!kTypeName<Value>.empty(), "a type has a name");
    key.type = kTypeName<Value>;
    key.range = rule.describe();
    key.resume = resume;
    key.help = std::move(help);
    key.is_text = key.type == "text";
    key.set = [of = of_, member, rule](
                  TrainConfig& config, const nlohmann::json& value) {
      return read_value(value, rule, of(config).*member);
    };
    key.get = [of = of_, member, absent = rule.absent](
                  const TrainConfig& config) -> nlohmann::json {
      nlohmann::json value = write_value(of(config).*member);
      return value.is_null() && absent ? nlohmann::json(*absent) : value;
    };
    return keys_.emplace_back(std::move(key));
  }

 private:
  std::vector<ConfigKey>& keys_;
  std::string group_;
  Of of_;
};

// Keys whose values are members of config.*first.*second..., such as
// &TrainConfig::training, &TrainingConfig::lr.
template <class... Members>
auto group_keys(
    std::vector<ConfigKey>& keys,
    std::string group,
    Members... members) {
  return GroupKeys(
      keys, std::move(group), [members...](auto& config) -> auto& {
        return (config.*....*members);
      });
}

// The keys of `distributed` and of `training`, in the order of the docs.
void add_distributed(std::vector<ConfigKey>& keys);
void add_training(std::vector<ConfigKey>& keys);

}  // namespace brigade
