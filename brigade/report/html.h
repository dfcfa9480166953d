// Texts inside a page.
#pragma once

#include <string>
#include <string_view>

namespace brigade {

// As text or attribute.
std::string escaped_html(std::string_view text);
// JSON inside a <script> element.
std::string escaped_json(std::string json);

}  // namespace brigade
