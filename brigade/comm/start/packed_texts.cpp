#include "brigade/comm/start/packed_texts.h"

#include <fmt/format.h>

#include <charconv>

#include "brigade/base/error.h"

namespace brigade {

std::string pack_texts(const std::vector<std::string>& texts) {
  std::string packed;
  for (const std::string& text : texts)
    packed += fmt::format("{}:{}", text.size(), text);
  return packed;
}

std::vector<std::string> unpack_texts(std::string_view packed) {
  std::vector<std::string> texts;
  while (!packed.empty()) {
    size_t length = 0;
    const auto [end, error] =
        std::from_chars(packed.data(), packed.data() + packed.size(), length);
    const auto begin = static_cast<size_t>(end - packed.data()) + 1;
    if (error != std::errc() || begin > packed.size() ||
        length > packed.size() - begin)
      throw CommError("[start] the store holds an answer that is damaged");
    texts.emplace_back(packed.substr(begin, length));
    packed.remove_prefix(begin + length);
  }
  return texts;
}

}  // namespace brigade
