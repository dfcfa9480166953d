// What prepare() writes, and what it must not replace by it.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <system_error>
#include <vector>

namespace brigade {

// A file that prepare() reads, as its option names it.
struct PrepareSource {
  std::string option;  // "--input"
  std::filesystem::path path;
};

// Throws ConfigError where one of `sources` is what a dataset of `prefix` would
// replace or remove_leftovers() removes, or lies in a folder of that kind, such
// as PREFIX.tokenizer, which is replaced whole.
// Files are compared, not names: links lead to the same one.
void refuse_sources_in_output(
    const std::filesystem::path& prefix,
    const std::vector<PrepareSource>& sources);

// Removes what an interrupted run left under names of its own, PREFIX.*.tmp-*.
// Call it under the lock.
void remove_leftovers(const std::filesystem::path& prefix);

// Removes what this process has begun for `prefix` and not finished: for one
// that a signal ends in the middle of prepare().
void remove_unfinished(const std::filesystem::path& prefix);

// Throws ConfigError for each file of a dataset of `prefix` that is there; one
// interrupted between its names has left some. A PREFIX.json alone is none.
void refuse_existing_output(const std::filesystem::path& prefix);

// Throws ConfigError where PREFIX.json is no dataset's, PREFIX.tokenizer
// anything but what prepare() wrote, or PREFIX.lock not empty: these names are
// everybody's. Call it before the lock is taken, which removes its file.
void refuse_foreign_output(const std::filesystem::path& prefix);

// PREFIX.tokenizer under construction.
class TokenizerFolder {
 public:
  explicit TokenizerFolder(const std::filesystem::path& prefix);
  ~TokenizerFolder();
  TokenizerFolder(const TokenizerFolder&) = delete;
  TokenizerFolder& operator=(const TokenizerFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  const std::filesystem::path& temporary() const { return temporary_; }

  // Copies the tokenizer that `spec` names, and the files that describe it.
  void copy(const std::filesystem::path& spec);

  // In place of all that were copied.
  void set_chat_template(const std::string& source);

  // Takes the place of an older one.
  void commit();

 private:
  void copy_file(
      const std::filesystem::path& from,
      const std::filesystem::path& name);

  std::filesystem::path path_;
  std::filesystem::path temporary_;
};

// Calls change(error), and throws StorageError of its error, which names what
// was done and the path.
void change_storage(
    const char* what,
    const std::filesystem::path& path,
    const std::function<void(std::error_code&)>& change);

}  // namespace brigade
