-- The last part of renew.lua: admits waiters.
--
-- The lease has been renewed, so no error may become the reply. If an error follows the removal of an entry, its next check restores
-- it.
pcall(advance, q)
return {1, is_contended(q)}
