#include "brigade/checkpoint/pretrained.h"

#include "brigade/checkpoint/hugging_face.h"
#include "brigade/checkpoint/param_parts.h"
#include "brigade/model_spec/parameter_table.h"

namespace brigade {

void load_pretrained(
    const std::filesystem::path& folder,
    const DecoderConfig& decoder,
    std::span<const Param> params) {
  std::vector<State> parts;
  for (const Param& param : params) {
    if (param.row->stored_in != StoredIn::kAdapter)
      parts.push_back(part_of("", param, param.tensor));
  }
  load_weights(SafetensorsFolder(folder), list_parameters(decoder), parts);
}

}  // namespace brigade
