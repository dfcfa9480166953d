#include "brigade/checkpoint/pretrained.h"

#include <map>

#include "brigade/checkpoint/hugging_face.h"
#include "brigade/model_spec/parameter_table.h"

namespace brigade {

void load_pretrained(
    const std::filesystem::path& folder,
    const DecoderConfig& decoder,
    const std::vector<Param>& params) {
  const torch::NoGradGuard no_grad;
  const std::vector<ParameterRow> expected = list_parameters(decoder);
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const ParameterRow& row : expected)
    shapes[row.name] = row.shape;
  std::vector<WeightTarget> targets;
  for (const Param& param : params) {
    ShardSpec spec = whole_tensor(shapes.at(param.name));
    torch::Tensor destination = param.tensor;
    const ParamShard& shard = param.cut;
    if (shard.dim != kNotCut) {
      spec.ranges[static_cast<size_t>(shard.dim)] = {shard.begin, shard.end};
      const int64_t filled = shard.end - shard.begin;
      destination = param.tensor.narrow(shard.dim, 0, filled);
      param.tensor
          .narrow(shard.dim, filled, param.tensor.size(shard.dim) - filled)
          .zero_();
    }
    targets.push_back({param.name, std::move(spec), destination});
  }
  load_weights(SafetensorsFolder(folder), expected, targets);
}

}  // namespace brigade
