#include "brigade/data/whole_text.h"

#include <fmt/format.h>

#include <system_error>

#include "brigade/base/error.h"
#include "brigade/data/text_files.h"
#include "brigade/data/text_reader.h"

namespace brigade {

std::string read_whole_text(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error))
    throw DataError(fmt::format(
        "[text_reader] '{}' is a folder: give a file", path.string()));
  const TextOptions options{.are_of_prepare = false};
  TextReader reader(find_text_files({path}, TextFormat::kPlain), options);
  std::string text;
  TextBlock block;
  while (reader.next(block)) {
    for_each_piece(
        block, reader.files().front(), options, [&](const TextPiece& piece) {
          text += piece.text;
        });
  }
  return text;
}

}  // namespace brigade
