#include "brigade/checkpoint/hugging_face_names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <set>

#include "brigade/base/error.h"
#include "brigade/model_spec/parameter_table.h"

namespace brigade {
namespace {

bool is_float(SafetensorsDtype dtype) {
  return dtype == SafetensorsDtype::kF64 || dtype == SafetensorsDtype::kF32 ||
         dtype == SafetensorsDtype::kF16 || dtype == SafetensorsDtype::kBF16;
}

std::string show(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

bool same_shape(
    const std::vector<uint64_t>& stored,
    const std::vector<int64_t>& expected) {
  return std::equal(
      stored.begin(),
      stored.end(),
      expected.begin(),
      expected.end(),
      [](uint64_t a, int64_t b) { return a == static_cast<uint64_t>(b); });
}

// What surrounds the tensor: its module, or all layers together.
std::string_view part_of(std::string_view name) {
  const size_t layers = name.find("layers.");
  if (layers != std::string_view::npos)
    return name.substr(0, layers + 6);
  return name.substr(0, name.rfind('.'));
}

class Locator {
 public:
  Locator(
      const SafetensorsFolder& folder,
      const std::vector<ParameterRow>& expected)
      : folder_(folder), has_prefix_(holds_prefix(folder)) {
    for (const ParameterRow& row : expected) {
      expected_.emplace(row.name, &row);
      layers_ = std::max(layers_, row.layer + 1);
      parts_.insert(part_of(stored_name(row.name)));
      parts_.insert(part_of(row.tied_head));
      if (!row.group.empty())
        groups_[row.group].push_back(&row);
      if (!row.stack.empty()) {
        Stack& stack = stacks_[row.stack];
        stack.rows = std::max(stack.rows, row.stack_row + row.shape[0]);
        stack.experts = std::max(stack.experts, row.expert + 1);
      }
      if (!row.tied_head.empty())
        tied_.emplace(row.tied_head, &row);
    }
  }

  std::map<std::string, StoredTensor> locate() {
    for (const auto& [name, row] : expected_) {
      const SafetensorsTensor* stored = find(name);
      if (stored == nullptr && !row->tied_head.empty())
        stored = find(row->tied_head);
      if (stored != nullptr) {
        check(*stored, row->shape);
        located_[name] = {.stored = stored};
        used_.insert(stored->name);
      } else if (!locate_in_group(*row) && !locate_in_stack(*row)) {
        missing_.push_back(name);
      }
    }
    for (const auto& [name, stored] : folder_.tensors()) {
      if (used_.count(name) == 0 && !may_be_ignored(name, *stored))
        surplus_.push_back(name);
    }
    report();
    return std::move(located_);
  }

 private:
  static constexpr std::string_view kPrefix = "model.";

  const SafetensorsFolder& folder_;
  // A model that was saved without its head has names without "model.".
  const bool has_prefix_;
  std::map<std::string, const ParameterRow*> expected_;
  int64_t layers_ = 0;
  // By the name under which a group is stored, in the table's order.
  std::map<std::string, std::vector<const ParameterRow*>> groups_;
  // A layer's experts as one tensor [experts, rows / experts, ..].
  struct Stack {
    int64_t rows = 0;
    int64_t experts = 0;
  };
  std::map<std::string, Stack> stacks_;              // by name
  std::map<std::string, const ParameterRow*> tied_;  // by tied_head
  std::map<std::string, StoredTensor> located_;
  std::set<std::string> used_;
  std::set<std::string_view> parts_;  // as part_of() says, of the model
  std::vector<std::string> missing_, surplus_, wrong_;

  static bool holds_prefix(const SafetensorsFolder& folder) {
    const auto after = folder.tensors().lower_bound(kPrefix);
    return after != folder.tensors().end() && after->first.starts_with(kPrefix);
  }

  std::string_view stored_name(std::string_view name) const {
    if (!has_prefix_ && name.starts_with(kPrefix))
      name.remove_prefix(kPrefix.size());
    return name;
  }
  const SafetensorsTensor* find(std::string_view name) const {
    const SafetensorsTensor* found = folder_.find(stored_name(name));
    if (found != nullptr)
      return found;
    return folder_.find(stored_name(name_in_memory(name)));
  }

  void check(
      const SafetensorsTensor& stored,
      const std::vector<int64_t>& shape) {
    if (!same_shape(stored.shape, shape)) {
      wrong_.push_back(fmt::format(
          "{} is [{}], expected {}",
          stored.name,
          fmt::join(stored.shape, ", "),
          show(shape)));
    }
    if (!is_float(stored.dtype)) {
      wrong_.push_back(fmt::format(
          "{} is {}, expected F64, F32, F16 or BF16",
          stored.name,
          name_of(stored.dtype)));
    }
  }

  // True when the folder holds the row's group as one tensor.
  bool locate_in_group(const ParameterRow& row) {
    const SafetensorsTensor* stored =
        row.group.empty() ? nullptr : find(row.group);
    if (stored == nullptr)
      return false;
    std::vector<int64_t> group_shape = row.shape;
    group_shape[0] = 0;
    int64_t first_row = 0;
    for (const ParameterRow* member : groups_.at(row.group)) {
      if (member == &row)
        first_row = group_shape[0];
      group_shape[0] += member->shape[0];
    }
    if (used_.insert(stored->name).second)
      check(*stored, group_shape);
    located_[row.name] = {stored, {0, first_row, first_row + row.shape[0]}};
    return true;
  }

  // The same of a layer's experts.
  bool locate_in_stack(const ParameterRow& row) {
    const SafetensorsTensor* stored =
        row.stack.empty() ? nullptr : find(row.stack);
    if (stored == nullptr)
      return false;
    const Stack& stack = stacks_.at(row.stack);
    if (used_.insert(stored->name).second)
      check(
          *stored,
          {stack.experts, stack.rows / stack.experts, row.shape.at(1)});
    located_[row.name] = {
        stored, {0, row.stack_row, row.stack_row + row.shape[0]}};
    return true;
  }

  bool may_be_ignored(
      const std::string& name,
      const SafetensorsTensor& stored) {
    // What is no float is no weight, and what belongs to no part of this model
    // (a head for another task) leaves its numbers as they are.
    if (is_obsolete_buffer(name) || !is_float(stored.dtype) ||
        !parts_.contains(part_of(name)) || is_of_prediction_layer(name))
      return true;
    const auto tied = tied_.find(name);
    if (tied == tied_.end())
      return false;
    // The file may hold the head once more, but not another one.
    const SafetensorsTensor* embedding = find(tied->second->name);
    if (embedding == nullptr)
      return false;
    const bool equal =
        stored.dtype == embedding->dtype && stored.shape == embedding->shape &&
        std::memcmp(
            stored.data.data(), embedding->data.data(), stored.data.size()) ==
            0;
    if (!equal) {
      wrong_.push_back(fmt::format(
          "{} differs from {}, but tie_word_embeddings is true",
          name,
          embedding->name));
    }
    return true;
  }

  // Whether it belongs to a layer behind the last that predicts further tokens,
  // as GLM-4-MoE's files have one: nothing else has an eh_proj.
  bool is_of_prediction_layer(std::string_view name) const {
    constexpr std::string_view kLayers = "layers.";
    const size_t at = name.find(kLayers);
    if (at == std::string_view::npos)
      return false;
    int64_t layer = -1;
    const char* const first = name.data() + at + kLayers.size();
    const char* const end =
        std::from_chars(first, name.data() + name.size(), layer).ptr;
    const std::string prefix(name.data(), end);
    return layer >= layers_ &&
           folder_.find(prefix + ".eh_proj.weight") != nullptr;
  }

  // Whether what is missing is what a tied model does not have.
  bool lacks_only_the_head() const {
    if (missing_.size() != 1)
      return false;
    const ParameterRow& row = *expected_.at(missing_.front());
    return row.place == Place::kHead && row.cut.unit == CutUnit::kVocabulary;
  }

  // A model with experts has thousands of tensors.
  static std::string list(const std::vector<std::string>& names) {
    constexpr size_t kShown = 24;
    const size_t shown = std::min(names.size(), kShown);
    const std::string text = fmt::format(
        "{}", fmt::join(names.begin(), names.begin() + shown, ", "));
    return shown == names.size()
               ? text
               : fmt::format("{} and {} more", text, names.size() - shown);
  }

  void report() const {
    if (missing_.empty() && surplus_.empty() && wrong_.empty())
      return;
    std::string text = fmt::format(
        "[hugging_face] the tensors of '{}' are not those of this model",
        folder_.path().string());
    if (!missing_.empty())
      text += "\n  missing: " + list(missing_);
    if (lacks_only_the_head())
      text += " (is tie_word_embeddings true?)";
    if (!surplus_.empty())
      text += "\n  surplus: " + list(surplus_);
    if (!wrong_.empty())
      text += fmt::format("\n  wrong: {}", fmt::join(wrong_, "; "));
    throw DataError(text);
  }
};

}  // namespace

std::string name_in_memory(std::string_view name) {
  constexpr std::string_view kBlock = ".block_sparse_moe.";
  std::string renamed(name);
  const size_t at = name.find(kBlock);
  if (at != std::string_view::npos)
    renamed.replace(at, kBlock.size(), ".mlp.");
  return renamed;
}

std::map<std::string, StoredTensor> locate_tensors(
    const SafetensorsFolder& folder,
    const std::vector<ParameterRow>& expected) {
  return Locator(folder, expected).locate();
}

}  // namespace brigade
