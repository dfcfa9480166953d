#include "brigade/checkpoint/hugging_face_names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <string_view>

#include "brigade/base/error.h"
#include "brigade/model_spec/param_names.h"

namespace brigade {
namespace {

constexpr const char* kHead = "lm_head.weight";
constexpr std::string_view kOldBuffer = ".rotary_emb.inv_freq";

// A projection that other programs store as one matrix, its parts stacked.
struct Fusion {
  std::string_view fused;
  std::vector<std::string_view> parts;
};

const std::vector<Fusion>& fusions() {
  static const std::vector<Fusion> kFusions = {
      {"self_attn.qkv_proj.",
       {"self_attn.q_proj.", "self_attn.k_proj.", "self_attn.v_proj."}},
      {"mlp.gate_up_proj.", {"mlp.gate_proj.", "mlp.up_proj."}},
  };
  return kFusions;
}

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

class Locator {
 public:
  Locator(
      const SafetensorsFolder& folder,
      const std::vector<ExpectedTensor>& expected)
      : folder_(folder) {
    for (const ExpectedTensor& tensor : expected)
      expected_.emplace(tensor.name, &tensor.shape);
  }

  std::map<std::string, StoredTensor> locate() {
    for (const auto& [name, shape] : expected_) {
      if (const SafetensorsTensor* stored = folder_.find(name)) {
        check(*stored, *shape);
        located_[name] = {.stored = stored, .first_row = 0};
        used_.insert(name);
      } else if (!locate_fused(name)) {
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
  const SafetensorsFolder& folder_;
  std::map<std::string, const std::vector<int64_t>*> expected_;
  std::map<std::string, StoredTensor> located_;
  std::set<std::string> used_;
  std::vector<std::string> missing_, surplus_, wrong_;

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

  // True when `name` is a part of a fused tensor that the folder holds.
  bool locate_fused(const std::string& name) {
    for (const Fusion& fusion : fusions()) {
      for (const std::string_view part : fusion.parts) {
        const size_t at = name.find(part);
        if (at == std::string::npos)
          continue;
        const auto renamed = [&](std::string_view to) {
          return name.substr(0, at) + std::string(to) +
                 name.substr(at + part.size());
        };
        const SafetensorsTensor* stored = folder_.find(renamed(fusion.fused));
        if (stored == nullptr)
          return false;
        std::vector<int64_t> fused_shape = *expected_.at(name);
        fused_shape[0] = 0;
        int64_t first_row = 0;
        for (const std::string_view sibling : fusion.parts) {
          if (sibling == part)
            first_row = fused_shape[0];
          const auto found = expected_.find(renamed(sibling));
          if (found == expected_.end())
            return false;
          fused_shape[0] += found->second->front();
        }
        if (used_.insert(stored->name).second)
          check(*stored, fused_shape);
        located_[name] = {.stored = stored, .first_row = first_row};
        return true;
      }
    }
    return false;
  }

  bool may_be_ignored(
      const std::string& name,
      const SafetensorsTensor& stored) {
    if (name.size() > kOldBuffer.size() && name.ends_with(kOldBuffer))
      return true;
    if (name != kHead || expected_.count(kEmbeddingName) == 0)
      return false;
    // Tied: the file may hold the head once more, but not another one.
    const SafetensorsTensor* embedding = folder_.find(kEmbeddingName);
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
          kHead,
          kEmbeddingName));
    }
    return true;
  }

  void report() const {
    if (missing_.empty() && surplus_.empty() && wrong_.empty())
      return;
    std::string text = fmt::format(
        "[hugging_face] the tensors of '{}' are not those of this model",
        folder_.path().string());
    if (!missing_.empty())
      text += fmt::format("\n  missing: {}", fmt::join(missing_, ", "));
    if (missing_ == std::vector<std::string>{kHead})
      text += " (is tie_word_embeddings true?)";
    if (!surplus_.empty())
      text += fmt::format("\n  surplus: {}", fmt::join(surplus_, ", "));
    if (!wrong_.empty())
      text += fmt::format("\n  wrong: {}", fmt::join(wrong_, "; "));
    throw DataError(text);
  }
};

}  // namespace

std::map<std::string, StoredTensor> locate_tensors(
    const SafetensorsFolder& folder,
    const std::vector<ExpectedTensor>& expected) {
  return Locator(folder, expected).locate();
}

}  // namespace brigade
