// Directories that take a name as a whole.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>

namespace brigade {

// Gives `source`, a directory whose files are synced, the name `target` and
// syncs the parent. Where a directory `target` exists the two change names in
// one step (renameat2), so that at every instant `target` is one of them, and
// the old one is removed afterwards. A file system that cannot do this first
// moves `target` to `target`.old: after a kill in between it is there under
// that name, and finish_replacing() brings it back.
// Throws StorageError; `target` is then what it was before.
void replace_directory(
    const std::filesystem::path& source,
    const std::filesystem::path& target);

// Ends what a kill interrupted: `target`.old becomes `target` again where that
// is missing, and is removed where it is there. Throws StorageError.
void finish_replacing(const std::filesystem::path& target);

// A folder beside `out` that is gone unless it was renamed to it.
class FolderUnderConstruction {
 public:
  // `out` has a name ("folder/" has none); `module`: what the errors are of.
  // Throws StorageError, as all members do.
  FolderUnderConstruction(std::filesystem::path out, const char* module);
  ~FolderUnderConstruction();
  FolderUnderConstruction(const FolderUnderConstruction&) = delete;
  FolderUnderConstruction& operator=(const FolderUnderConstruction&) = delete;

  const std::filesystem::path& path() const { return path_; }
  void copy(const std::filesystem::path& file, const std::string& name) const;
  // Precondition: `out` is absent or an empty folder.
  void commit() const;

 private:
  std::filesystem::path out_;
  const char* module_;
  std::filesystem::path path_;

  void check(const std::error_code& error) const;
};

}  // namespace brigade
