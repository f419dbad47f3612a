"""The Agent Client Protocol: Fulgur inside Zed, JetBrains, Neovim, Emacs and others."""
