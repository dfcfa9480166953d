// What a model's config.json says that is allowed and means nothing.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace brigade {

// One sentence each, for people; none for what is no object. The config may be
// of any architecture.
std::vector<std::string> model_warnings(const nlohmann::json& config);

}  // namespace brigade
