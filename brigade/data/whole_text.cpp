#include "brigade/data/whole_text.h"

#include "brigade/data/text_reader.h"

namespace brigade {

std::string read_whole_text(const std::filesystem::path& path) {
  TextReader reader(find_text_files({path}, TextFormat::kPlain), {});
  std::string text;
  TextBlock block;
  while (reader.next(block)) {
    for_each_piece(
        block, reader.files().front(), {}, [&](const TextPiece& piece) {
          text += piece.text;
        });
  }
  return text;
}

}  // namespace brigade
